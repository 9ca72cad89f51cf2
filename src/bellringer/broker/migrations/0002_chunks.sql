-- The second form of the broker: chunks of messages, claims of ranges, outcomes; single rows for the exceptions alone.

CREATE TYPE bellringer.tracked_state AS ENUM ('queued', 'delayed', 'ready', 'held');
CREATE TYPE bellringer.outcome AS ENUM ('finished', 'extended', 'returned', 'dead_lettered', 'expired', 'purged');

ALTER TABLE bellringer.queues
    ADD COLUMN number integer GENERATED ALWAYS AS IDENTITY UNIQUE,
    ADD COLUMN delay_seconds double precision NOT NULL DEFAULT 0,
    ADD COLUMN wait_seconds double precision NOT NULL DEFAULT 0,
    ADD COLUMN max_body_bytes integer NOT NULL DEFAULT 262144,
    ADD COLUMN fifo boolean NOT NULL DEFAULT false,
    ADD COLUMN expires boolean NOT NULL DEFAULT false,
    ADD COLUMN content_deduplication boolean NOT NULL DEFAULT false,
    ADD COLUMN max_receives integer,
    ADD COLUMN dead_letter_queue text,
    ADD COLUMN redrive_allow jsonb,
    ADD COLUMN tags jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN paused boolean NOT NULL DEFAULT false,
    ADD COLUMN modified_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ADD COLUMN floor_seq bigint NOT NULL DEFAULT 1,
    ADD COLUMN floor_lane bigint NOT NULL DEFAULT 0;
-- Until now retention began when a message was deleted, and one that waits never expired: no queue loses any by this.
UPDATE bellringer.queues SET retention_seconds = GREATEST(retention_seconds, 7 * 24 * 3600);
COMMENT ON COLUMN bellringer.queues.number IS 'Names the queue in the rows of its messages: four bytes instead of sixteen';
COMMENT ON COLUMN bellringer.queues.retention_seconds IS 'From the publication of a message until it and its history go';
COMMENT ON COLUMN bellringer.queues.expires IS 'Whether an unfinished message goes too when its retention is over';
COMMENT ON COLUMN bellringer.queues.dead_letter_queue IS 'A name: a queue made anew under it takes over';
COMMENT ON COLUMN bellringer.queues.floor_seq IS 'The next seq when no chunk is left to tell it';
COMMENT ON COLUMN bellringer.queues.floor_lane IS 'The same for chunks.lane_after and claims.lane_after';

-- Insert only. Messages seq = first_seq, first_seq + 1, ... of one queue, without a gap between chunks.
CREATE TABLE bellringer.chunks (
    queue integer NOT NULL,
    messages integer NOT NULL,
    first_seq bigint NOT NULL,
    lane_after bigint NOT NULL,
    sent_at timestamptz NOT NULL,
    tracked boolean NOT NULL,
    ends integer[],
    payload bytea NOT NULL,
    PRIMARY KEY (queue, first_seq)
);
-- A part of a large value can be read alone only if it is not compressed.
ALTER TABLE bellringer.chunks ALTER COLUMN payload SET STORAGE EXTERNAL;
COMMENT ON COLUMN bellringer.chunks.lane_after IS 'Messages of the queue so far that are not tracked one by one';
COMMENT ON COLUMN bellringer.chunks.tracked IS 'Its one message has a row in tracked, and claims pass the chunk by';
COMMENT ON COLUMN bellringer.chunks.ends IS 'Where each message ends in the payload; null for a single one';
COMMENT ON COLUMN bellringer.chunks.payload IS 'Frames: 0 and the body, or 1, four bytes of length, a JSON header, the body';

-- Insert only, but for the one update that ends a claim. The newest claim of a queue tells where the next one begins.
CREATE TABLE bellringer.claims (
    queue integer NOT NULL,
    messages integer NOT NULL,
    first_seq bigint NOT NULL,
    next_seq bigint NOT NULL,
    lane_after bigint NOT NULL,
    claimed_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    ended_at timestamptz,
    PRIMARY KEY (queue, first_seq)
);
CREATE INDEX claims_open ON bellringer.claims (queue, expires_at) WHERE ended_at IS NULL;
COMMENT ON COLUMN bellringer.claims.ended_at IS 'From then on, a message without an outcome is finished';

-- Insert only: what left a claim before its end, or otherwise than finished.
CREATE TABLE bellringer.claim_outcomes (
    queue integer NOT NULL,
    outcome bellringer.outcome NOT NULL,
    claim_seq bigint NOT NULL,
    at timestamptz NOT NULL,
    seqs int8multirange NOT NULL
);
CREATE INDEX claim_outcomes_claim ON bellringer.claim_outcomes (queue, claim_seq);
COMMENT ON COLUMN bellringer.claim_outcomes.claim_seq IS 'claims.first_seq';

-- The exceptions, one row each: delayed messages, those of FIFO queues, those that came back, holds that were extended.
CREATE TABLE bellringer.tracked (
    queue integer NOT NULL,
    attempts integer NOT NULL,
    seq bigint NOT NULL,
    due_at timestamptz,
    first_claimed_at timestamptz,
    claimed_at timestamptz,
    state bellringer.tracked_state NOT NULL,
    group_key text,
    PRIMARY KEY (queue, seq)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
CREATE INDEX tracked_ready ON bellringer.tracked (queue, seq) WHERE state = 'ready';
CREATE INDEX tracked_due ON bellringer.tracked (queue, due_at) WHERE state IN ('delayed', 'held');
CREATE INDEX tracked_group ON bellringer.tracked (queue, group_key, seq) WHERE state = 'queued';
CREATE INDEX tracked_busy_group ON bellringer.tracked (queue, group_key)
    WHERE group_key IS NOT NULL AND state IN ('delayed', 'ready', 'held');
COMMENT ON COLUMN bellringer.tracked.state IS 'queued: behind others of its group; delayed; ready; held by a claim';

CREATE TABLE bellringer.tracked_outcomes (
    queue integer NOT NULL,
    attempts integer NOT NULL,
    seq bigint NOT NULL,
    claimed_at timestamptz,
    at timestamptz NOT NULL,
    outcome bellringer.outcome NOT NULL
);
CREATE INDEX tracked_outcomes_seq ON bellringer.tracked_outcomes (queue, seq);

-- What was published inside a caller's transaction, until it is appended to its queue.
CREATE TABLE bellringer.inbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue integer NOT NULL,
    delay_seconds double precision,
    group_key text,
    deduplication_id text,
    payload bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
ALTER TABLE bellringer.inbox ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE INDEX inbox_queue ON bellringer.inbox (queue, id);

CREATE TABLE bellringer.deduplications (
    queue integer NOT NULL,
    deduplication_id text NOT NULL,
    seq bigint NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (queue, deduplication_id)
);
CREATE INDEX deduplications_expiry ON bellringer.deduplications (expires_at);

-- Queues are full at one moment and empty at the next: without statistics the planner always takes the index.
ALTER TABLE bellringer.tracked ALTER COLUMN state SET STATISTICS 0, ALTER COLUMN queue SET STATISTICS 0,
    ALTER COLUMN due_at SET STATISTICS 0, ALTER COLUMN group_key SET STATISTICS 0;
ALTER TABLE bellringer.claims ALTER COLUMN ended_at SET STATISTICS 0, ALTER COLUMN queue SET STATISTICS 0;
ALTER TABLE bellringer.chunks ALTER COLUMN queue SET STATISTICS 0;

-- The key of the receipt handles' authentication codes: one row, made by the first broker that needs it.
CREATE TABLE bellringer.receipt_secrets (
    id boolean PRIMARY KEY DEFAULT true CHECK (id),
    secret bytea NOT NULL
);

-- Queues whose rows are still to be removed.
CREATE TABLE bellringer.deleted_queues (number integer PRIMARY KEY);
