CREATE SCHEMA bellringer;

CREATE TYPE bellringer.delivery_state AS ENUM (
    'pending',
    'sent',
    'failed'
);

CREATE TYPE bellringer.message_state AS ENUM (
    'pending',
    'delayed',
    'in_flight',
    'deleted'
);

CREATE TABLE bellringer.api_keys (
    id uuid NOT NULL,
    environment_id uuid NOT NULL,
    name text NOT NULL,
    hint text NOT NULL,
    hash bytea NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    revoked_at timestamp with time zone,
    scopes text[] DEFAULT '{admin}'::text[] NOT NULL,
    requests_per_second double precision,
    burst integer,
    access_key_id text,
    signing_secret text,
    CONSTRAINT api_keys_limit_whole CHECK (((num_nulls(requests_per_second, burst) = ANY (ARRAY[0, 2])) AND (requests_per_second > (0)::double precision) AND (burst > 0))),
    CONSTRAINT api_keys_pair_whole CHECK ((num_nulls(access_key_id, signing_secret) = ANY (ARRAY[0, 2]))),
    CONSTRAINT api_keys_scopes_known CHECK (((cardinality(scopes) > 0) AND (scopes <@ ARRAY['publish'::text, 'consume'::text, 'admin'::text])))
);

COMMENT ON COLUMN bellringer.api_keys.hint IS 'The last four characters, to tell keys apart';

COMMENT ON COLUMN bellringer.api_keys.hash IS 'SHA-256 of the key';

COMMENT ON COLUMN bellringer.api_keys.signing_secret IS 'The secret access key: an HMAC under the key, from which the key cannot be found';

CREATE TABLE bellringer.captured_mail (
    id uuid NOT NULL,
    environment_id uuid NOT NULL,
    sender text NOT NULL,
    recipients text[] NOT NULL,
    subject text NOT NULL,
    message bytea NOT NULL,
    received_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
ALTER TABLE ONLY bellringer.captured_mail ALTER COLUMN environment_id SET STATISTICS 0;

CREATE TABLE bellringer.deliveries (
    email_id uuid NOT NULL,
    address text NOT NULL,
    state bellringer.delivery_state DEFAULT 'pending'::bellringer.delivery_state NOT NULL,
    reply text,
    refusals integer DEFAULT 0 NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
)
WITH (fillfactor='80');

COMMENT ON COLUMN bellringer.deliveries.reply IS 'What the SMTP server said last';

COMMENT ON COLUMN bellringer.deliveries.refusals IS 'How often the SMTP server refused it for now';

CREATE TABLE bellringer.digest_items (
    notification_id uuid NOT NULL,
    digest_id uuid NOT NULL,
    audience bytea NOT NULL,
    joined_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

COMMENT ON TABLE bellringer.digest_items IS 'Insert-only; the primary key lets a notification join one digest only';

CREATE TABLE bellringer.digests (
    id uuid NOT NULL,
    environment_id uuid NOT NULL,
    window_seconds integer NOT NULL,
    opened_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    closes_at timestamp with time zone NOT NULL,
    closed_at timestamp with time zone,
    notification_count integer NOT NULL,
    email_count integer
);

COMMENT ON COLUMN bellringer.digests.email_count IS 'Null until the digest is grouped into emails';

CREATE TABLE bellringer.emails (
    id uuid NOT NULL,
    environment_id uuid NOT NULL,
    digest_id uuid NOT NULL,
    audiences bytea[] NOT NULL,
    part integer NOT NULL,
    parts integer NOT NULL,
    first_notification_id uuid,
    last_notification_id uuid,
    event_count integer NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

COMMENT ON COLUMN bellringer.emails.audiences IS 'Its events: the items of the digest with one of these audiences';

COMMENT ON COLUMN bellringer.emails.first_notification_id IS 'The bounds of a part; null when there is one part';

CREATE TABLE bellringer.environments (
    id uuid NOT NULL,
    organisation text NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE bellringer.idempotency_keys (
    environment_id uuid NOT NULL,
    key text NOT NULL,
    fingerprint bytea,
    notification_ids uuid[] NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE bellringer.leases (
    name text NOT NULL,
    holder uuid NOT NULL,
    epoch bigint NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

COMMENT ON TABLE bellringer.leases IS 'Who does a job that one process does at a time, and until when';

COMMENT ON COLUMN bellringer.leases.epoch IS 'Grows with every new holder: the fencing token';

CREATE TABLE bellringer.messages (
    id bigint NOT NULL,
    queue_id uuid NOT NULL,
    state bellringer.message_state DEFAULT 'pending'::bellringer.message_state NOT NULL,
    body bytea NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    picked_at timestamp with time zone,
    due_at timestamp with time zone,
    deleted_at timestamp with time zone,
    receipt_handle uuid,
    attempts integer DEFAULT 0 NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='5000');
ALTER TABLE ONLY bellringer.messages ALTER COLUMN queue_id SET STATISTICS 0;
ALTER TABLE ONLY bellringer.messages ALTER COLUMN state SET STATISTICS 0;

COMMENT ON COLUMN bellringer.messages.due_at IS 'When a delayed or in-flight message becomes pending again';

ALTER TABLE bellringer.messages ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME bellringer.messages_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE bellringer.migrations (
    subsystem text NOT NULL,
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE bellringer.notifications (
    id uuid NOT NULL,
    environment_id uuid NOT NULL,
    type text NOT NULL,
    source text,
    subject text,
    data json,
    recipients text[] NOT NULL,
    audience bytea NOT NULL,
    occurred_at timestamp with time zone NOT NULL,
    accepted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
ALTER TABLE ONLY bellringer.notifications ALTER COLUMN environment_id SET STATISTICS 0;

COMMENT ON COLUMN bellringer.notifications.recipients IS 'Normalised addresses, sorted';

COMMENT ON COLUMN bellringer.notifications.audience IS 'First 16 bytes of the SHA-256 of the recipients';

CREATE TABLE bellringer.queues (
    id uuid NOT NULL,
    environment_id uuid NOT NULL,
    name text NOT NULL,
    visibility_timeout_seconds integer NOT NULL,
    retention_seconds integer NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

COMMENT ON COLUMN bellringer.queues.retention_seconds IS 'How long a deleted message can still be looked up';

CREATE TABLE bellringer.tallies (
    owner uuid NOT NULL,
    name text NOT NULL,
    value bigint NOT NULL
);

COMMENT ON TABLE bellringer.tallies IS 'Counts; the true value is this plus the entries not yet folded';

CREATE TABLE bellringer.tally_entries (
    id bigint NOT NULL,
    owner uuid NOT NULL,
    name text NOT NULL,
    change bigint NOT NULL
)
WITH (autovacuum_vacuum_threshold='5000', autovacuum_vacuum_scale_factor='0');

ALTER TABLE bellringer.tally_entries ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME bellringer.tally_entries_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE bellringer.workflows (
    environment_id uuid NOT NULL,
    type text NOT NULL,
    digest_window_seconds integer NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

ALTER TABLE ONLY bellringer.api_keys
    ADD CONSTRAINT api_keys_access_key_id_key UNIQUE (access_key_id);

ALTER TABLE ONLY bellringer.api_keys
    ADD CONSTRAINT api_keys_hash_key UNIQUE (hash);

ALTER TABLE ONLY bellringer.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.captured_mail
    ADD CONSTRAINT captured_mail_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.deliveries
    ADD CONSTRAINT deliveries_pkey PRIMARY KEY (email_id, address);

ALTER TABLE ONLY bellringer.digest_items
    ADD CONSTRAINT digest_items_pkey PRIMARY KEY (notification_id);

ALTER TABLE ONLY bellringer.digests
    ADD CONSTRAINT digests_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.emails
    ADD CONSTRAINT emails_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.environments
    ADD CONSTRAINT environments_organisation_name_key UNIQUE (organisation, name);

ALTER TABLE ONLY bellringer.environments
    ADD CONSTRAINT environments_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (environment_id, key);

ALTER TABLE ONLY bellringer.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (name);

ALTER TABLE ONLY bellringer.messages
    ADD CONSTRAINT messages_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (subsystem, number);

ALTER TABLE ONLY bellringer.notifications
    ADD CONSTRAINT notifications_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.queues
    ADD CONSTRAINT queues_environment_id_name_key UNIQUE (environment_id, name);

ALTER TABLE ONLY bellringer.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.tallies
    ADD CONSTRAINT tallies_pkey PRIMARY KEY (owner, name);

ALTER TABLE ONLY bellringer.tally_entries
    ADD CONSTRAINT tally_entries_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.workflows
    ADD CONSTRAINT workflows_pkey PRIMARY KEY (environment_id, type);

CREATE INDEX captured_mail_environment ON bellringer.captured_mail USING btree (environment_id, id);

CREATE INDEX captured_mail_received_at ON bellringer.captured_mail USING btree (received_at);

CREATE INDEX digest_items_audience ON bellringer.digest_items USING btree (digest_id, audience, notification_id);

CREATE INDEX digests_closed ON bellringer.digests USING btree (closed_at) WHERE (closed_at IS NOT NULL);

CREATE INDEX digests_due ON bellringer.digests USING btree (closes_at) WHERE (closed_at IS NULL);

CREATE UNIQUE INDEX digests_open ON bellringer.digests USING btree (environment_id, window_seconds) WHERE (closed_at IS NULL);

CREATE INDEX emails_digest ON bellringer.emails USING btree (digest_id);

CREATE INDEX idempotency_keys_created_at ON bellringer.idempotency_keys USING btree (created_at);

CREATE INDEX messages_deleted ON bellringer.messages USING btree (queue_id, deleted_at) WHERE (state = 'deleted'::bellringer.message_state);

CREATE INDEX messages_due ON bellringer.messages USING btree (due_at) WHERE (state = ANY (ARRAY['in_flight'::bellringer.message_state, 'delayed'::bellringer.message_state]));

CREATE INDEX messages_pending ON bellringer.messages USING btree (queue_id, id) WHERE (state = 'pending'::bellringer.message_state);

CREATE INDEX messages_picked ON bellringer.messages USING btree (queue_id, picked_at) WHERE (state = 'in_flight'::bellringer.message_state);

CREATE UNIQUE INDEX messages_receipt_handle ON bellringer.messages USING btree (receipt_handle) WHERE (receipt_handle IS NOT NULL);

CREATE INDEX notifications_environment ON bellringer.notifications USING btree (environment_id, id);

CREATE INDEX tally_entries_owner ON bellringer.tally_entries USING btree (owner);

ALTER TABLE ONLY bellringer.api_keys
    ADD CONSTRAINT api_keys_environment_id_fkey FOREIGN KEY (environment_id) REFERENCES bellringer.environments(id);

ALTER TABLE ONLY bellringer.deliveries
    ADD CONSTRAINT deliveries_email_id_fkey FOREIGN KEY (email_id) REFERENCES bellringer.emails(id) ON DELETE CASCADE;

ALTER TABLE ONLY bellringer.digest_items
    ADD CONSTRAINT digest_items_digest_id_fkey FOREIGN KEY (digest_id) REFERENCES bellringer.digests(id) ON DELETE CASCADE;

ALTER TABLE ONLY bellringer.emails
    ADD CONSTRAINT emails_digest_id_fkey FOREIGN KEY (digest_id) REFERENCES bellringer.digests(id) ON DELETE CASCADE;

ALTER TABLE ONLY bellringer.messages
    ADD CONSTRAINT messages_queue_id_fkey FOREIGN KEY (queue_id) REFERENCES bellringer.queues(id);
