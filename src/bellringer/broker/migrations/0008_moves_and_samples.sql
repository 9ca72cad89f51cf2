CREATE TABLE bellringer.moves (
    id uuid PRIMARY KEY,
    source_id uuid NOT NULL,
    destination_id uuid,
    state text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'completed', 'cancelled', 'failed')),
    max_per_second integer,
    to_move bigint NOT NULL,
    moved bigint NOT NULL DEFAULT 0,
    failure text,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz
);
CREATE UNIQUE INDEX moves_running ON bellringer.moves (source_id) WHERE state = 'running';
CREATE INDEX moves_source ON bellringer.moves (source_id, started_at);
COMMENT ON COLUMN bellringer.moves.destination_id IS 'Null: each message to the queue that it came from';

-- Written when something changed: a number holds until the next row of its queue.
CREATE TABLE bellringer.queue_samples (
    queue integer NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    pending bigint NOT NULL,
    in_flight bigint NOT NULL,
    delayed bigint NOT NULL,
    published bigint NOT NULL,
    finished bigint NOT NULL,
    PRIMARY KEY (queue, at)
);
