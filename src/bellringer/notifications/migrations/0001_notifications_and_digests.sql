CREATE TABLE bellringer.notifications (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL,
    type text NOT NULL,
    source text,
    subject text,
    data json,
    recipients text[] NOT NULL,
    audience bytea NOT NULL,
    occurred_at timestamptz NOT NULL,
    accepted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON COLUMN bellringer.notifications.recipients IS 'Normalised addresses, sorted';
COMMENT ON COLUMN bellringer.notifications.audience IS 'First 16 bytes of the SHA-256 of the recipients';
-- Ids are UUIDv7: newest first is a walk of this index backwards.
CREATE INDEX notifications_environment ON bellringer.notifications (environment_id, id);

CREATE TABLE bellringer.idempotency_keys (
    environment_id uuid NOT NULL,
    key text NOT NULL,
    fingerprint bytea,
    notification_ids uuid[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (environment_id, key)
);
CREATE INDEX idempotency_keys_created_at ON bellringer.idempotency_keys (created_at);

CREATE TABLE bellringer.workflows (
    environment_id uuid NOT NULL,
    type text NOT NULL,
    digest_window_seconds integer NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (environment_id, type)
);

CREATE TABLE bellringer.digests (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL,
    window_seconds integer NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    closes_at timestamptz NOT NULL,
    closed_at timestamptz,
    notification_count integer NOT NULL,
    email_count integer
);
COMMENT ON COLUMN bellringer.digests.email_count IS 'Null until the digest is grouped into emails';
-- One open digest per environment and window: joining it is an insert that meets this index.
CREATE UNIQUE INDEX digests_open ON bellringer.digests (environment_id, window_seconds) WHERE closed_at IS NULL;
CREATE INDEX digests_due ON bellringer.digests (closes_at) WHERE closed_at IS NULL;
CREATE INDEX digests_closed ON bellringer.digests (closed_at) WHERE closed_at IS NOT NULL;

CREATE TABLE bellringer.digest_items (
    notification_id uuid PRIMARY KEY,
    digest_id uuid NOT NULL REFERENCES bellringer.digests ON DELETE CASCADE,
    audience bytea NOT NULL,
    joined_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE bellringer.digest_items IS 'Insert-only; the primary key lets a notification join one digest only';
CREATE INDEX digest_items_audience ON bellringer.digest_items (digest_id, audience, notification_id);

CREATE TABLE bellringer.emails (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL,
    digest_id uuid NOT NULL REFERENCES bellringer.digests ON DELETE CASCADE,
    audiences bytea[] NOT NULL,
    part integer NOT NULL,
    parts integer NOT NULL,
    first_notification_id uuid,
    last_notification_id uuid,
    event_count integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON COLUMN bellringer.emails.audiences IS 'Its events: the items of the digest with one of these audiences';
COMMENT ON COLUMN bellringer.emails.first_notification_id IS 'The bounds of a part; null when there is one part';
CREATE INDEX emails_digest ON bellringer.emails (digest_id);

CREATE TYPE bellringer.delivery_state AS ENUM ('pending', 'sent', 'failed');

CREATE TABLE bellringer.deliveries (
    email_id uuid NOT NULL REFERENCES bellringer.emails ON DELETE CASCADE,
    address text NOT NULL,
    state bellringer.delivery_state NOT NULL DEFAULT 'pending',
    reply text,
    refusals integer NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (email_id, address)
) WITH (fillfactor = 80);
COMMENT ON COLUMN bellringer.deliveries.reply IS 'What the SMTP server said last';
COMMENT ON COLUMN bellringer.deliveries.refusals IS 'How often the SMTP server refused it for now';

CREATE TABLE bellringer.captured_mail (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL,
    sender text NOT NULL,
    recipients text[] NOT NULL,
    subject text NOT NULL,
    message bytea NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX captured_mail_environment ON bellringer.captured_mail (environment_id, id);
CREATE INDEX captured_mail_received_at ON bellringer.captured_mail (received_at);

-- Without statistics of an environment's share, the planner looks for its rows in its own index. With them it may walk
-- through everybody's, newest first, in the hope to meet some soon: in vain where an environment has long been silent.
ALTER TABLE bellringer.notifications ALTER COLUMN environment_id SET STATISTICS 0;
ALTER TABLE bellringer.captured_mail ALTER COLUMN environment_id SET STATISTICS 0;
