CREATE TABLE bellringer.leases (
    name text PRIMARY KEY,
    holder uuid NOT NULL,
    epoch bigint NOT NULL,
    expires_at timestamptz NOT NULL
);
COMMENT ON TABLE bellringer.leases IS 'Who does a job that one process does at a time, and until when';
COMMENT ON COLUMN bellringer.leases.epoch IS 'Grows with every new holder: the fencing token';

CREATE TABLE bellringer.tallies (
    owner uuid NOT NULL,
    name text NOT NULL,
    value bigint NOT NULL,
    PRIMARY KEY (owner, name)
);
COMMENT ON TABLE bellringer.tallies IS 'Counts; the true value is this plus the entries not yet folded';

CREATE TABLE bellringer.tally_entries (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner uuid NOT NULL,
    name text NOT NULL,
    change bigint NOT NULL
) WITH (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX tally_entries_owner ON bellringer.tally_entries (owner);
