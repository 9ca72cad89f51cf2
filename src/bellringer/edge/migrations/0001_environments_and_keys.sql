CREATE TABLE bellringer.environments (
    id uuid PRIMARY KEY,
    organisation text NOT NULL,
    name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (organisation, name)
);

CREATE TABLE bellringer.api_keys (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL REFERENCES bellringer.environments,
    name text NOT NULL,
    hint text NOT NULL,
    hash bytea NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    revoked_at timestamptz
);
COMMENT ON COLUMN bellringer.api_keys.hint IS 'The last four characters, to tell keys apart';
COMMENT ON COLUMN bellringer.api_keys.hash IS 'SHA-256 of the key';
