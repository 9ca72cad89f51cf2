CREATE SCHEMA bellringer;

CREATE TYPE bellringer.delivery_state AS ENUM (
    'pending',
    'sent',
    'failed'
);

CREATE TYPE bellringer.outcome AS ENUM (
    'finished',
    'extended',
    'returned',
    'dead_lettered',
    'expired',
    'purged'
);

CREATE TYPE bellringer.tracked_state AS ENUM (
    'queued',
    'delayed',
    'ready',
    'held'
);

CREATE FUNCTION bellringer.add_to_header(in_frame bytea, in_addition jsonb) RETURNS bytea
    LANGUAGE plpgsql IMMUTABLE
    AS $$ … $$;

CREATE FUNCTION bellringer.adopt_overlap(in_task bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.append(in_queues integer[], in_counts integer[], in_ends integer[], in_payloads bytea[], in_delays double precision[], in_groups text[], in_deduplications text[], in_after_waiting boolean DEFAULT true) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.append_waiting(in_queue integer) RETURNS void
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.cancel_occurrence(in_task bigint, in_fire_at timestamp with time zone) RETURNS text
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.check_members(in_parameter text, in_object jsonb, in_types jsonb, in_required text[]) RETURNS void
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.check_number(in_place text, in_number double precision, in_lowest double precision, in_highest double precision) RETURNS void
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.check_options(in_options jsonb) RETURNS void
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.claim(in_queue integer, in_limit integer, in_seconds double precision) RETURNS TABLE(claim_seq bigint, attempts integer, first_seq bigint, messages integer, sent_at timestamp with time zone, first_claimed_at timestamp with time zone, ends_before integer, ends integer[], payload bytea)
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.claim_tracked(in_queue integer, in_limit integer, in_seconds double precision) RETURNS TABLE(claim_seq bigint, attempts integer, first_seq bigint, messages integer, sent_at timestamp with time zone, first_claimed_at timestamp with time zone, ends_before integer, ends integer[], payload bytea)
    LANGUAGE sql
    AS $$ … $$;

CREATE FUNCTION bellringer.collect(in_queue integer, in_from bigint, in_limit integer, OUT next_from bigint, OUT removed integer) RETURNS record
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.complete_call(in_call jsonb) RETURNS jsonb
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.count_incidents() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.dead_letter(in_queue integer, in_seq bigint, in_attempts integer, in_claimed_at timestamp with time zone, in_group text, in_letters integer) RETURNS void
    LANGUAGE sql
    AS $$ … $$;

CREATE FUNCTION bellringer.dead_letter_queue_of(in_queue integer, in_attempts integer) RETURNS integer
    LANGUAGE sql STABLE
    AS $$ … $$;

CREATE FUNCTION bellringer.deduplicate(in_queue integer, in_id text, in_seq bigint) RETURNS bigint
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.drain_inbox(in_after bigint, in_limit integer, in_bytes bigint) RETURNS TABLE(highest bigint, moved bigint, queue_ids uuid[], all_over_before bigint, next_transaction bigint)
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.due_queues(in_seconds double precision) RETURNS TABLE(number integer, id uuid)
    LANGUAGE sql STABLE
    AS $$ … $$;

CREATE FUNCTION bellringer.end_attempts(in_tasks bigint[], in_fire_ats timestamp with time zone[], in_attempts integer[], in_outcomes text[], in_details text[]) RETURNS TABLE(place bigint, is_recorded boolean)
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.environment_of(in_environment text) RETURNS uuid
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.finish(in_queue integer, in_claim bigint, in_seqs int8multirange, OUT finished int8multirange, OUT repeated int8multirange) RETURNS record
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.finish_tracked(in_queues integer[], in_seqs bigint[], in_attempts integer[]) RETURNS TABLE(queue integer, seq bigint, attempts integer, was_held boolean)
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.frame_of(in_queue integer, in_seq bigint, OUT sent_at timestamp with time zone, OUT frame bytea) RETURNS record
    LANGUAGE sql STABLE
    AS $$ … $$;

CREATE FUNCTION bellringer.give_back(in_queue integer, in_seqs bigint[], in_seconds double precision, in_unseen boolean) RETURNS void
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE TABLE bellringer.tasks (
    number bigint NOT NULL,
    environment_id uuid NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    queue integer NOT NULL,
    once_at timestamp with time zone,
    cron text,
    time_zone text DEFAULT 'UTC'::text NOT NULL,
    every_seconds double precision,
    starting_at timestamp with time zone,
    call jsonb NOT NULL,
    payload text DEFAULT 'null'::text NOT NULL,
    misfire text DEFAULT 'latest'::text NOT NULL,
    misfire_limit integer DEFAULT 10 NOT NULL,
    misfire_window_seconds double precision DEFAULT 3600 NOT NULL,
    overlap text NOT NULL,
    time_limit_seconds double precision DEFAULT 3600 NOT NULL,
    max_retries integer DEFAULT 0 NOT NULL,
    retry_first_seconds double precision DEFAULT 10 NOT NULL,
    retry_cap_seconds double precision DEFAULT 3600 NOT NULL,
    rerun_after_crash boolean DEFAULT false NOT NULL,
    state text DEFAULT 'active'::text NOT NULL,
    problem text,
    is_planned boolean DEFAULT true NOT NULL,
    next_fire_at timestamp with time zone,
    running_fire_at timestamp with time zone,
    waiting_fire_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    modified_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    delay_seconds double precision,
    CONSTRAINT tasks_check CHECK ((num_nonnulls(once_at, cron, every_seconds) = 1)),
    CONSTRAINT tasks_check1 CHECK (((state = 'active'::text) OR (next_fire_at IS NULL))),
    CONSTRAINT tasks_check2 CHECK (((delay_seconds IS NULL) OR (once_at IS NOT NULL))),
    CONSTRAINT tasks_misfire_check CHECK ((misfire = ANY (ARRAY['skip'::text, 'latest'::text, 'all'::text, 'window'::text]))),
    CONSTRAINT tasks_overlap_check CHECK ((overlap = ANY (ARRAY['allow'::text, 'skip'::text, 'queue'::text, 'replace'::text]))),
    CONSTRAINT tasks_state_check CHECK ((state = ANY (ARRAY['active'::text, 'paused'::text, 'cancelled'::text, 'refused'::text])))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02');

COMMENT ON COLUMN bellringer.tasks.queue IS 'Number of the queue of the broker that its occurrences are handed to';

COMMENT ON COLUMN bellringer.tasks.payload IS 'JSON, byte for byte as it was given';

COMMENT ON COLUMN bellringer.tasks.problem IS 'Why it was refused, when what was scheduled in SQL is no valid task';

COMMENT ON COLUMN bellringer.tasks.is_planned IS 'False: next_fire_at is no fire time but the moment from which a picker looks for the first one';

COMMENT ON COLUMN bellringer.tasks.next_fire_at IS 'The first fire time without an occurrence; null when none is to come';

COMMENT ON COLUMN bellringer.tasks.running_fire_at IS 'Where occurrences may not overlap: the one that runs';

COMMENT ON COLUMN bellringer.tasks.waiting_fire_at IS 'Where occurrences may not overlap: the one that is next';

COMMENT ON COLUMN bellringer.tasks.delay_seconds IS 'What was given for once_at, if not the time itself';

CREATE FUNCTION bellringer.give_up_missed(in_task bellringer.tasks, in_moment timestamp with time zone, in_why text) RETURNS void
    LANGUAGE sql
    AS $$ … $$;

CREATE FUNCTION bellringer.head_of(in_queue integer, OUT next_seq bigint, OUT lane_after bigint) RETURNS record
    LANGUAGE sql STABLE
    AS $$ … $$;

CREATE FUNCTION bellringer.hold_up(in_task bellringer.tasks, in_fire_at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.is_tried_again(state text, max_retries integer, rerun_after_crash boolean, cancel_requested boolean, outcome text, attempt integer) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$ … $$;

CREATE FUNCTION bellringer.leave_claim(in_queue integer, in_claim bigint, in_outcome bellringer.outcome, in_seqs int8multirange) RETURNS void
    LANGUAGE sql
    AS $$ … $$;

CREATE FUNCTION bellringer.lock_claims(in_queue integer) RETURNS void
    LANGUAGE sql
    AS $$ … $$;

CREATE FUNCTION bellringer.lock_order(in_queue integer) RETURNS void
    LANGUAGE sql
    AS $$ … $$;

CREATE FUNCTION bellringer.lock_order_of_fifo(in_queues integer[]) RETURNS void
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.lock_tasks(in_tasks bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.miss_cause(due_at timestamp with time zone, picked_at timestamp with time zone, dispatched_at timestamp with time zone, held_seconds double precision, ready_seconds double precision) RETURNS text
    LANGUAGE sql
    AS $$ … $$;

CREATE FUNCTION bellringer.passed_by(in_queue integer, in_from bigint, in_to bigint) RETURNS int8multirange
    LANGUAGE sql STABLE
    AS $$ … $$;

CREATE FUNCTION bellringer.pick(numbers bigint[], next_fire_ats timestamp with time zone[], problems text[], run_tasks bigint[], run_fire_ats timestamp with time zone[], skip_tasks bigint[], skip_fire_ats timestamp with time zone[]) RETURNS void
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.publish(queue text, body bytea, delay_seconds double precision DEFAULT NULL::double precision, message_group text DEFAULT NULL::text, deduplication_id text DEFAULT NULL::text, attributes jsonb DEFAULT NULL::jsonb, environment text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.publish(queue text, body jsonb, delay_seconds double precision DEFAULT NULL::double precision, message_group text DEFAULT NULL::text, deduplication_id text DEFAULT NULL::text, attributes jsonb DEFAULT NULL::jsonb, environment text DEFAULT NULL::text) RETURNS void
    LANGUAGE sql
    AS $$ … $$;

CREATE FUNCTION bellringer.publish(queue text, body text, delay_seconds double precision DEFAULT NULL::double precision, message_group text DEFAULT NULL::text, deduplication_id text DEFAULT NULL::text, attributes jsonb DEFAULT NULL::jsonb, environment text DEFAULT NULL::text) RETURNS void
    LANGUAGE sql
    AS $$ … $$;

CREATE FUNCTION bellringer.purge(in_queue integer) RETURNS bigint
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.put_back(in_queue integer, in_claim bigint, in_seqs int8multirange, in_seconds double precision, in_keep boolean, in_unseen boolean) RETURNS int8multirange
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.put_back_tracked(in_queue integer, in_seqs bigint[], in_attempts integer[], in_seconds double precision, in_keep boolean, in_unseen boolean) RETURNS TABLE(seq bigint, attempts integer)
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.queue_of_call(in_environment uuid, in_call jsonb) RETURNS integer
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.refuse_parameter(in_parameter text, in_problem text) RETURNS void
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.retry_occurrence(in_task bigint, in_fire_at timestamp with time zone) RETURNS text
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.run_of(in_queue integer, in_first_seq bigint, in_messages integer, OUT ends_before integer, OUT ends integer[], OUT payload bytea) RETURNS record
    LANGUAGE sql STABLE
    AS $$ … $$;

CREATE FUNCTION bellringer.run_subject(task bellringer.tasks) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN ((task).once_at IS NULL) THEN ('task '::text || (task).number) ELSE "left"(CASE ((task).call ->> 'type'::text) WHEN 'http'::text THEN ('http '::text || split_part(((task).call ->> 'url'::text), '?'::text, 1)) WHEN 'message'::text THEN ('message '::text || ((task).call ->> 'queue'::text)) WHEN 'notification'::text THEN ('notification '::text || ((task).call ->> 'event_type'::text)) ELSE ('function '::text || ((task).call ->> 'name'::text)) END, 200) END;

COMMENT ON FUNCTION bellringer.run_subject(task bellringer.tasks) IS 'The subject under which the durations of its runs are kept';

CREATE FUNCTION bellringer.run_task(in_task bigint, OUT verdict text, OUT moment timestamp with time zone) RETURNS SETOF record
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.schedule(name text, call jsonb, payload jsonb DEFAULT 'null'::jsonb, at timestamp with time zone DEFAULT NULL::timestamp with time zone, delay_seconds double precision DEFAULT NULL::double precision, cron text DEFAULT NULL::text, time_zone text DEFAULT 'UTC'::text, every_seconds double precision DEFAULT NULL::double precision, starting_at timestamp with time zone DEFAULT NULL::timestamp with time zone, options jsonb DEFAULT '{}'::jsonb, environment text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.settle_groups(in_queue integer, in_groups text[]) RETURNS void
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.size(in_seqs int8multirange) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$ … $$;

CREATE FUNCTION bellringer.skip_occurrence(in_task bellringer.tasks, in_fire_at timestamp with time zone, reason text) RETURNS void
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.start_occurrences(in_executor uuid, in_tasks bigint[], in_fire_ats timestamp with time zone[], in_attempts integer[], in_dispatched_ats timestamp with time zone[], held_seconds double precision[], ready_seconds double precision[], promise_seconds double precision, lost_seconds double precision) RETURNS TABLE(place bigint, verdict text, wait_seconds double precision, environment_id uuid, name text, call text, payload text, time_limit_seconds double precision, is_recurring boolean)
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.stop_task(in_environment uuid, in_name text, in_state text) RETURNS SETOF bellringer.tasks
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.sweep(in_queue integer, in_limit integer, in_seconds double precision) RETURNS integer
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.tail_of(in_queue integer, OUT next_seq bigint, OUT lane_after bigint) RETURNS record
    LANGUAGE sql STABLE
    AS $$ … $$;

CREATE FUNCTION bellringer.tally(in_queue integer, in_name text, in_change bigint) RETURNS void
    LANGUAGE sql
    AS $$ … $$;

CREATE FUNCTION bellringer.track(in_queue integer, in_seqs int8multirange, in_attempts integer, in_claimed_at timestamp with time zone, in_seconds double precision, in_keep boolean) RETURNS void
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.unpick(in_task bigint, in_moment timestamp with time zone, in_other_schedule boolean) RETURNS timestamp with time zone
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.unschedule(name text, environment text DEFAULT NULL::text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$ … $$;

CREATE FUNCTION bellringer.whole_seconds_until(moment timestamp with time zone, now timestamp with time zone) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN GREATEST((floor(EXTRACT(epoch FROM (moment - now))))::integer, '-1'::integer);

COMMENT ON FUNCTION bellringer.whole_seconds_until(moment timestamp with time zone, now timestamp with time zone) IS 'For the look-ahead; -1 for everything before now';

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

CREATE TABLE bellringer.chunks (
    queue integer NOT NULL,
    messages integer NOT NULL,
    first_seq bigint NOT NULL,
    lane_after bigint NOT NULL,
    sent_at timestamp with time zone NOT NULL,
    tracked boolean NOT NULL,
    ends integer[],
    payload bytea NOT NULL
);
ALTER TABLE ONLY bellringer.chunks ALTER COLUMN queue SET STATISTICS 0;
ALTER TABLE ONLY bellringer.chunks ALTER COLUMN payload SET STORAGE EXTERNAL;

COMMENT ON COLUMN bellringer.chunks.lane_after IS 'Messages of the queue so far that are not tracked one by one';

COMMENT ON COLUMN bellringer.chunks.tracked IS 'Its one message has a row in tracked, and claims pass the chunk by';

COMMENT ON COLUMN bellringer.chunks.ends IS 'Where each message ends in the payload; null for a single one';

COMMENT ON COLUMN bellringer.chunks.payload IS 'Frames: 0 and the body, or 1, four bytes of length, a JSON header, the body';

CREATE TABLE bellringer.claim_outcomes (
    queue integer NOT NULL,
    outcome bellringer.outcome NOT NULL,
    claim_seq bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    seqs int8multirange NOT NULL
);

COMMENT ON COLUMN bellringer.claim_outcomes.claim_seq IS 'claims.first_seq';

CREATE TABLE bellringer.claims (
    queue integer NOT NULL,
    messages integer NOT NULL,
    first_seq bigint NOT NULL,
    next_seq bigint NOT NULL,
    lane_after bigint NOT NULL,
    claimed_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone
);
ALTER TABLE ONLY bellringer.claims ALTER COLUMN queue SET STATISTICS 0;
ALTER TABLE ONLY bellringer.claims ALTER COLUMN ended_at SET STATISTICS 0;

COMMENT ON COLUMN bellringer.claims.ended_at IS 'From then on, a message without an outcome is finished';

CREATE TABLE bellringer.deduplications (
    queue integer NOT NULL,
    deduplication_id text NOT NULL,
    seq bigint NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

CREATE TABLE bellringer.deleted_queues (
    number integer NOT NULL
);

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

CREATE TABLE bellringer.executors (
    id uuid NOT NULL,
    host text NOT NULL,
    process integer NOT NULL,
    concurrency integer NOT NULL,
    environment_id uuid,
    running integer DEFAULT 0 NOT NULL,
    held integer DEFAULT 0 NOT NULL,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

COMMENT ON COLUMN bellringer.executors.environment_id IS 'Whose functions it has; null when it has none';

CREATE TABLE bellringer.functions (
    environment_id uuid NOT NULL,
    name text NOT NULL,
    parameters jsonb NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE bellringer.idempotency_keys (
    environment_id uuid NOT NULL,
    key text NOT NULL,
    fingerprint bytea,
    notification_ids uuid[] NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE bellringer.inbox (
    id bigint NOT NULL,
    queue integer NOT NULL,
    delay_seconds double precision,
    group_key text,
    deduplication_id text,
    payload bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='5000');
ALTER TABLE ONLY bellringer.inbox ALTER COLUMN payload SET STORAGE EXTERNAL;

ALTER TABLE bellringer.inbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME bellringer.inbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE bellringer.incidents (
    id bigint NOT NULL,
    environment_id uuid NOT NULL,
    task bigint NOT NULL,
    task_name text NOT NULL,
    kind text NOT NULL,
    fire_at timestamp with time zone,
    last_fire_at timestamp with time zone,
    fire_times integer DEFAULT 1 NOT NULL,
    attempt integer,
    cause text,
    detail text,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    resolved_at timestamp with time zone,
    is_announced boolean DEFAULT false NOT NULL,
    CONSTRAINT incidents_kind_check CHECK ((kind = ANY (ARRAY['missed'::text, 'failed'::text, 'timed_out'::text, 'crashed'::text, 'skipped'::text, 'refused'::text])))
);

COMMENT ON COLUMN bellringer.incidents.last_fire_at IS 'Of fire times skipped together: the last, from fire_at on';

COMMENT ON COLUMN bellringer.incidents.resolved_at IS 'When a failed occurrence was tried again';

ALTER TABLE bellringer.incidents ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME bellringer.incidents_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE bellringer.leases (
    name text NOT NULL,
    holder uuid NOT NULL,
    epoch bigint NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

COMMENT ON TABLE bellringer.leases IS 'Who does a job that one process does at a time, and until when';

COMMENT ON COLUMN bellringer.leases.epoch IS 'Grows with every new holder: the fencing token';

CREATE TABLE bellringer.migrations (
    subsystem text NOT NULL,
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE bellringer.moves (
    id uuid NOT NULL,
    source_id uuid NOT NULL,
    destination_id uuid,
    state text DEFAULT 'running'::text NOT NULL,
    max_per_second integer,
    to_move bigint NOT NULL,
    moved bigint DEFAULT 0 NOT NULL,
    failure text,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    ended_at timestamp with time zone,
    CONSTRAINT moves_state_check CHECK ((state = ANY (ARRAY['running'::text, 'completed'::text, 'cancelled'::text, 'failed'::text])))
);

COMMENT ON COLUMN bellringer.moves.destination_id IS 'Null: each message to the queue that it came from';

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

CREATE TABLE bellringer.occurrences (
    task bigint NOT NULL,
    fire_at timestamp with time zone NOT NULL,
    stage smallint NOT NULL,
    due_at timestamp with time zone NOT NULL,
    attempt integer DEFAULT 1 NOT NULL,
    picked_at timestamp with time zone NOT NULL,
    dispatched_at timestamp with time zone,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    outcome text,
    detail text,
    missed_cause text,
    executor uuid,
    is_manual boolean DEFAULT false NOT NULL,
    cancel_requested boolean DEFAULT false NOT NULL,
    CONSTRAINT occurrences_check CHECK (((ended_at IS NULL) = (outcome IS NULL))),
    CONSTRAINT occurrences_outcome_check CHECK ((outcome = ANY (ARRAY['succeeded'::text, 'failed'::text, 'timed_out'::text, 'crashed'::text, 'cancelled'::text, 'skipped'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05');

COMMENT ON COLUMN bellringer.occurrences.due_at IS 'When it may start: the fire time, or later for a retry';

COMMENT ON COLUMN bellringer.occurrences.detail IS 'Why it failed or was skipped';

COMMENT ON COLUMN bellringer.occurrences.is_manual IS 'Asked for by hand; its fire time is the moment of that';

CREATE TABLE bellringer.past_attempts (
    task bigint NOT NULL,
    fire_at timestamp with time zone NOT NULL,
    attempt integer NOT NULL,
    due_at timestamp with time zone NOT NULL,
    dispatched_at timestamp with time zone,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    outcome text NOT NULL,
    detail text,
    executor uuid
);

CREATE TABLE bellringer.queue_samples (
    queue integer NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    pending bigint NOT NULL,
    in_flight bigint NOT NULL,
    delayed bigint NOT NULL,
    published bigint NOT NULL,
    finished bigint NOT NULL
);

CREATE TABLE bellringer.queues (
    id uuid NOT NULL,
    environment_id uuid NOT NULL,
    name text NOT NULL,
    visibility_timeout_seconds integer NOT NULL,
    retention_seconds integer NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    number integer NOT NULL,
    delay_seconds double precision DEFAULT 0 NOT NULL,
    wait_seconds double precision DEFAULT 0 NOT NULL,
    max_body_bytes integer DEFAULT 262144 NOT NULL,
    fifo boolean DEFAULT false NOT NULL,
    expires boolean DEFAULT false NOT NULL,
    content_deduplication boolean DEFAULT false NOT NULL,
    max_receives integer,
    dead_letter_queue text,
    redrive_allow jsonb,
    tags jsonb DEFAULT '{}'::jsonb NOT NULL,
    paused boolean DEFAULT false NOT NULL,
    modified_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    floor_seq bigint DEFAULT 1 NOT NULL,
    floor_lane bigint DEFAULT 0 NOT NULL
);

COMMENT ON COLUMN bellringer.queues.retention_seconds IS 'From the publication of a message until it and its history go';

COMMENT ON COLUMN bellringer.queues.number IS 'Names the queue in the rows of its messages: four bytes instead of sixteen';

COMMENT ON COLUMN bellringer.queues.expires IS 'Whether an unfinished message goes too when its retention is over';

COMMENT ON COLUMN bellringer.queues.dead_letter_queue IS 'A name: a queue made anew under it takes over';

COMMENT ON COLUMN bellringer.queues.floor_seq IS 'The next seq when no chunk is left to tell it';

COMMENT ON COLUMN bellringer.queues.floor_lane IS 'The same for chunks.lane_after and claims.lane_after';

ALTER TABLE bellringer.queues ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME bellringer.queues_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE bellringer.receipt_secrets (
    id boolean DEFAULT true NOT NULL,
    secret bytea NOT NULL,
    CONSTRAINT receipt_secrets_id_check CHECK (id)
);

CREATE TABLE bellringer.run_durations (
    subject text NOT NULL,
    seconds real[] NOT NULL,
    modified_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

COMMENT ON COLUMN bellringer.run_durations.subject IS 'A task by its number, or what one-time tasks call in common';

COMMENT ON COLUMN bellringer.run_durations.seconds IS 'The newest runs, newest last, 200 at most';

CREATE TABLE bellringer.scaling_decisions (
    id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    driver text NOT NULL,
    runs_due bigint NOT NULL,
    slots double precision NOT NULL,
    waiting bigint NOT NULL,
    executors_seen integer NOT NULL,
    current integer,
    needed integer NOT NULL,
    desired integer NOT NULL,
    reason text NOT NULL,
    problem text
);

COMMENT ON COLUMN bellringer.scaling_decisions.runs_due IS 'Tasks and occurrences due in the look-ahead';

COMMENT ON COLUMN bellringer.scaling_decisions.slots IS 'Needed by when executors ordered now or next could be ready';

COMMENT ON COLUMN bellringer.scaling_decisions.waiting IS 'Runs that were due and had not started';

COMMENT ON COLUMN bellringer.scaling_decisions.executors_seen IS 'Executors that showed themselves lately';

COMMENT ON COLUMN bellringer.scaling_decisions.current IS 'Executors ordered before; null when the driver could not say';

COMMENT ON COLUMN bellringer.scaling_decisions.problem IS 'Why the order failed; the next round tries again';

ALTER TABLE bellringer.scaling_decisions ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME bellringer.scaling_decisions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE bellringer.scheduler_samples (
    environment_id uuid NOT NULL,
    at timestamp with time zone NOT NULL,
    picked bigint NOT NULL,
    started bigint NOT NULL,
    ended bigint NOT NULL,
    failed bigint NOT NULL,
    skipped bigint NOT NULL,
    missed bigint NOT NULL,
    wait_milliseconds bigint NOT NULL,
    run_milliseconds bigint NOT NULL,
    waits bigint[] NOT NULL,
    picker_lag_seconds double precision NOT NULL,
    queue_depth bigint NOT NULL
);

COMMENT ON TABLE bellringer.scheduler_samples IS 'How the scheduler stood, a row whenever something changed; totals';

COMMENT ON COLUMN bellringer.scheduler_samples.waits IS 'Starts by how late they were: up to 0.1, 0.5, 1, 5, 10, 30 s, later';

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

ALTER TABLE bellringer.tasks ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME bellringer.tasks_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE bellringer.tracked (
    queue integer NOT NULL,
    attempts integer NOT NULL,
    seq bigint NOT NULL,
    due_at timestamp with time zone,
    first_claimed_at timestamp with time zone,
    claimed_at timestamp with time zone,
    state bellringer.tracked_state NOT NULL,
    group_key text
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='5000');
ALTER TABLE ONLY bellringer.tracked ALTER COLUMN queue SET STATISTICS 0;
ALTER TABLE ONLY bellringer.tracked ALTER COLUMN due_at SET STATISTICS 0;
ALTER TABLE ONLY bellringer.tracked ALTER COLUMN state SET STATISTICS 0;
ALTER TABLE ONLY bellringer.tracked ALTER COLUMN group_key SET STATISTICS 0;

COMMENT ON COLUMN bellringer.tracked.state IS 'queued: behind others of its group; delayed; ready; held by a claim';

CREATE TABLE bellringer.tracked_outcomes (
    queue integer NOT NULL,
    attempts integer NOT NULL,
    seq bigint NOT NULL,
    claimed_at timestamp with time zone,
    at timestamp with time zone NOT NULL,
    outcome bellringer.outcome NOT NULL
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

ALTER TABLE ONLY bellringer.chunks
    ADD CONSTRAINT chunks_pkey PRIMARY KEY (queue, first_seq);

ALTER TABLE ONLY bellringer.claims
    ADD CONSTRAINT claims_pkey PRIMARY KEY (queue, first_seq);

ALTER TABLE ONLY bellringer.deduplications
    ADD CONSTRAINT deduplications_pkey PRIMARY KEY (queue, deduplication_id);

ALTER TABLE ONLY bellringer.deleted_queues
    ADD CONSTRAINT deleted_queues_pkey PRIMARY KEY (number);

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

ALTER TABLE ONLY bellringer.executors
    ADD CONSTRAINT executors_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.functions
    ADD CONSTRAINT functions_pkey PRIMARY KEY (environment_id, name);

ALTER TABLE ONLY bellringer.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (environment_id, key);

ALTER TABLE ONLY bellringer.inbox
    ADD CONSTRAINT inbox_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.incidents
    ADD CONSTRAINT incidents_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (name);

ALTER TABLE ONLY bellringer.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (subsystem, number);

ALTER TABLE ONLY bellringer.moves
    ADD CONSTRAINT moves_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.notifications
    ADD CONSTRAINT notifications_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.occurrences
    ADD CONSTRAINT occurrences_pkey PRIMARY KEY (task, fire_at);

ALTER TABLE ONLY bellringer.past_attempts
    ADD CONSTRAINT past_attempts_pkey PRIMARY KEY (task, fire_at, attempt);

ALTER TABLE ONLY bellringer.queue_samples
    ADD CONSTRAINT queue_samples_pkey PRIMARY KEY (queue, at);

ALTER TABLE ONLY bellringer.queues
    ADD CONSTRAINT queues_environment_id_name_key UNIQUE (environment_id, name);

ALTER TABLE ONLY bellringer.queues
    ADD CONSTRAINT queues_number_key UNIQUE (number);

ALTER TABLE ONLY bellringer.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.receipt_secrets
    ADD CONSTRAINT receipt_secrets_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.run_durations
    ADD CONSTRAINT run_durations_pkey PRIMARY KEY (subject);

ALTER TABLE ONLY bellringer.scaling_decisions
    ADD CONSTRAINT scaling_decisions_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.scheduler_samples
    ADD CONSTRAINT scheduler_samples_pkey PRIMARY KEY (environment_id, at);

ALTER TABLE ONLY bellringer.tallies
    ADD CONSTRAINT tallies_pkey PRIMARY KEY (owner, name);

ALTER TABLE ONLY bellringer.tally_entries
    ADD CONSTRAINT tally_entries_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.tasks
    ADD CONSTRAINT tasks_environment_id_name_key UNIQUE (environment_id, name);

ALTER TABLE ONLY bellringer.tasks
    ADD CONSTRAINT tasks_pkey PRIMARY KEY (number);

ALTER TABLE ONLY bellringer.tracked
    ADD CONSTRAINT tracked_pkey PRIMARY KEY (queue, seq);

ALTER TABLE ONLY bellringer.workflows
    ADD CONSTRAINT workflows_pkey PRIMARY KEY (environment_id, type);

CREATE INDEX captured_mail_environment ON bellringer.captured_mail USING btree (environment_id, id);

CREATE INDEX captured_mail_received_at ON bellringer.captured_mail USING btree (received_at);

CREATE INDEX claim_outcomes_claim ON bellringer.claim_outcomes USING btree (queue, claim_seq);

CREATE INDEX claims_open ON bellringer.claims USING btree (queue, expires_at) WHERE (ended_at IS NULL);

CREATE INDEX deduplications_expiry ON bellringer.deduplications USING btree (expires_at);

CREATE INDEX digest_items_audience ON bellringer.digest_items USING btree (digest_id, audience, notification_id);

CREATE INDEX digests_closed ON bellringer.digests USING btree (closed_at) WHERE (closed_at IS NOT NULL);

CREATE INDEX digests_due ON bellringer.digests USING btree (closes_at) WHERE (closed_at IS NULL);

CREATE UNIQUE INDEX digests_open ON bellringer.digests USING btree (environment_id, window_seconds) WHERE (closed_at IS NULL);

CREATE INDEX emails_digest ON bellringer.emails USING btree (digest_id);

CREATE INDEX idempotency_keys_created_at ON bellringer.idempotency_keys USING btree (created_at);

CREATE INDEX inbox_queue ON bellringer.inbox USING btree (queue, id);

CREATE INDEX incidents_environment ON bellringer.incidents USING btree (environment_id, id);

CREATE INDEX incidents_kind ON bellringer.incidents USING btree (environment_id, kind, id);

CREATE INDEX incidents_task ON bellringer.incidents USING btree (task, fire_at);

CREATE INDEX incidents_unannounced ON bellringer.incidents USING btree (id) WHERE (NOT is_announced);

CREATE INDEX incidents_unresolved ON bellringer.incidents USING btree (environment_id, id) WHERE ((resolved_at IS NULL) AND (kind = ANY (ARRAY['failed'::text, 'timed_out'::text, 'crashed'::text])));

CREATE UNIQUE INDEX moves_running ON bellringer.moves USING btree (source_id) WHERE (state = 'running'::text);

CREATE INDEX moves_source ON bellringer.moves USING btree (source_id, started_at);

CREATE INDEX notifications_environment ON bellringer.notifications USING btree (environment_id, id);

CREATE INDEX occurrences_fire_at ON bellringer.occurrences USING btree ((fire_at AT TIME ZONE 'UTC'::text));

CREATE INDEX occurrences_open ON bellringer.occurrences USING btree (stage, due_at) WHERE (stage < 2);

CREATE INDEX run_durations_modified_at ON bellringer.run_durations USING btree (modified_at);

CREATE INDEX scaling_decisions_at ON bellringer.scaling_decisions USING btree (at);

CREATE INDEX tally_entries_owner ON bellringer.tally_entries USING btree (owner);

CREATE INDEX tasks_due ON bellringer.tasks USING btree (next_fire_at) WHERE (next_fire_at IS NOT NULL);

CREATE INDEX tasks_once_at ON bellringer.tasks USING btree (once_at) WHERE (once_at IS NOT NULL);

CREATE INDEX tasks_stopped ON bellringer.tasks USING btree (environment_id, state, name) WHERE (state <> 'active'::text);

CREATE INDEX tracked_busy_group ON bellringer.tracked USING btree (queue, group_key) WHERE ((group_key IS NOT NULL) AND (state = ANY (ARRAY['delayed'::bellringer.tracked_state, 'ready'::bellringer.tracked_state, 'held'::bellringer.tracked_state])));

CREATE INDEX tracked_due ON bellringer.tracked USING btree (queue, due_at) WHERE (state = ANY (ARRAY['delayed'::bellringer.tracked_state, 'held'::bellringer.tracked_state]));

CREATE INDEX tracked_group ON bellringer.tracked USING btree (queue, group_key, seq) WHERE (state = 'queued'::bellringer.tracked_state);

CREATE INDEX tracked_outcomes_seq ON bellringer.tracked_outcomes USING btree (queue, seq);

CREATE INDEX tracked_ready ON bellringer.tracked USING btree (queue, seq) WHERE (state = 'ready'::bellringer.tracked_state);

CREATE TRIGGER count_incidents AFTER INSERT ON bellringer.incidents REFERENCING NEW TABLE AS reported FOR EACH STATEMENT EXECUTE FUNCTION bellringer.count_incidents();

ALTER TABLE ONLY bellringer.api_keys
    ADD CONSTRAINT api_keys_environment_id_fkey FOREIGN KEY (environment_id) REFERENCES bellringer.environments(id);

ALTER TABLE ONLY bellringer.deliveries
    ADD CONSTRAINT deliveries_email_id_fkey FOREIGN KEY (email_id) REFERENCES bellringer.emails(id) ON DELETE CASCADE;

ALTER TABLE ONLY bellringer.digest_items
    ADD CONSTRAINT digest_items_digest_id_fkey FOREIGN KEY (digest_id) REFERENCES bellringer.digests(id) ON DELETE CASCADE;

ALTER TABLE ONLY bellringer.emails
    ADD CONSTRAINT emails_digest_id_fkey FOREIGN KEY (digest_id) REFERENCES bellringer.digests(id) ON DELETE CASCADE;

ALTER TABLE ONLY bellringer.tasks
    ADD CONSTRAINT tasks_environment_id_fkey FOREIGN KEY (environment_id) REFERENCES bellringer.environments(id);
