CREATE TABLE bellringer.queues (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL,
    name text NOT NULL,
    visibility_timeout_seconds integer NOT NULL,
    retention_seconds integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (environment_id, name)
);
COMMENT ON COLUMN bellringer.queues.retention_seconds IS 'How long a deleted message can still be looked up';

CREATE TYPE bellringer.message_state AS ENUM ('pending', 'delayed', 'in_flight', 'deleted');

CREATE TABLE bellringer.messages (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id uuid NOT NULL REFERENCES bellringer.queues,
    state bellringer.message_state NOT NULL DEFAULT 'pending',
    body bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    picked_at timestamptz,
    due_at timestamptz,
    deleted_at timestamptz,
    receipt_handle uuid,
    attempts integer NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
COMMENT ON COLUMN bellringer.messages.due_at IS 'When a delayed or in-flight message becomes pending again';

-- Each state has the index that its one reader walks: claim, sweep, purge.
CREATE INDEX messages_pending ON bellringer.messages (queue_id, id) WHERE state = 'pending';
CREATE INDEX messages_due ON bellringer.messages (due_at) WHERE state IN ('in_flight', 'delayed');
CREATE INDEX messages_deleted ON bellringer.messages (queue_id, deleted_at) WHERE state = 'deleted';
CREATE INDEX messages_picked ON bellringer.messages (queue_id, picked_at) WHERE state = 'in_flight';
CREATE UNIQUE INDEX messages_receipt_handle ON bellringer.messages (receipt_handle) WHERE receipt_handle IS NOT NULL;

-- States change faster than statistics are gathered. Without any, the planner takes every state and queue for rare, and
-- walks the index of the state; with those of an hour ago it may walk the whole table instead.
ALTER TABLE bellringer.messages ALTER COLUMN state SET STATISTICS 0, ALTER COLUMN queue_id SET STATISTICS 0;
