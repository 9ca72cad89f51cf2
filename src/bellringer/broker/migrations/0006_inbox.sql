-- Publishing inside any client's transaction, and the way from there to the queues.

-- Moves rows of the inbox to their queues, in the order of their ids. Returns the highest id that it took, how many,
-- the queues that got some, and the transactions that were over and under way when it looked.
CREATE FUNCTION bellringer.drain_inbox(in_after bigint, in_limit integer, in_bytes bigint)
RETURNS TABLE (highest bigint, moved bigint, queue_ids uuid[], all_over_before bigint, next_transaction bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    batch record;
    snapshot pg_snapshot;
    this_queue integer;
    locked_queues integer[] := '{}';
BEGIN
    -- One at a time, or a later row could be appended before an earlier one. Until its statement ends, so also when
    -- the process that asked is stopped.
    PERFORM pg_advisory_xact_lock(1111837769);
    snapshot := pg_current_snapshot();
    -- Before the rows: an append to a FIFO queue, which holds the first, may want the second.
    FOR this_queue IN
        SELECT DISTINCT queue FROM (
            SELECT queue FROM bellringer.inbox WHERE id > in_after ORDER BY id LIMIT in_limit
        ) AS first_rows
        ORDER BY queue
    LOOP
        PERFORM bellringer.lock_order(this_queue);
        locked_queues := locked_queues || this_queue;
    END LOOP;
    WITH first_rows AS MATERIALIZED (
        SELECT id, octet_length(payload) AS bytes FROM bellringer.inbox
        WHERE id > in_after AND queue = ANY (locked_queues) ORDER BY id LIMIT in_limit FOR UPDATE SKIP LOCKED
    ), taken AS MATERIALIZED (
        SELECT id FROM (SELECT id, sum(bytes) OVER (ORDER BY id) - bytes AS bytes_before FROM first_rows) AS sized
        WHERE bytes_before < in_bytes
    ), removed AS (
        DELETE FROM bellringer.inbox WHERE id = ANY (ARRAY(SELECT id FROM taken))
        RETURNING *, COALESCE(delay_seconds, 0) > 0 OR group_key IS NOT NULL OR deduplication_id IS NOT NULL AS single
    ), placed AS (
        -- A run of plain messages shares chunks of 250; any other stands alone between two runs.
        SELECT *, CASE WHEN single THEN id ELSE 0 END AS own,
            count(*) FILTER (WHERE single) OVER (PARTITION BY queue ORDER BY id) AS run
        FROM removed WHERE queue IN (SELECT number FROM bellringer.queues)
    ), numbered AS (
        SELECT *, (row_number() OVER (PARTITION BY queue, run, own ORDER BY id) - 1) / 250 AS part FROM placed
    ), measured AS (
        SELECT *, sum(octet_length(payload)) OVER (PARTITION BY queue, run, own, part ORDER BY id)::integer AS ending
        FROM numbered
    ), chunked AS MATERIALIZED (
        SELECT queue, min(id) AS first_id, count(*)::integer AS messages, array_agg(ending ORDER BY id) AS ends,
            string_agg(payload, ''::bytea ORDER BY id) AS payload, max(delay_seconds) AS delay,
            max(group_key) AS group_key, max(deduplication_id) AS deduplication_id
        FROM measured GROUP BY queue, run, own, part
    )
    SELECT array_agg(queue ORDER BY queue, first_id) AS queues, array_agg(messages ORDER BY queue, first_id) AS counts,
        (
            SELECT array_agg(ending ORDER BY queue, first_id, place)
            FROM chunked, unnest(ends) WITH ORDINALITY AS one (ending, place)
            WHERE messages > 1
        ) AS ends,
        array_agg(payload ORDER BY queue, first_id) AS payloads, array_agg(delay ORDER BY queue, first_id) AS delays,
        array_agg(group_key ORDER BY queue, first_id) AS groups,
        array_agg(deduplication_id ORDER BY queue, first_id) AS deduplications,
        (SELECT max(id) FROM taken) AS highest, (SELECT count(*) FROM taken) AS moved
    INTO batch FROM chunked;
    IF batch.queues IS NOT NULL THEN
        PERFORM bellringer.append(batch.queues, batch.counts, batch.ends, batch.payloads, batch.delays, batch.groups,
            batch.deduplications);
    END IF;
    RETURN QUERY SELECT batch.highest, batch.moved,
        ARRAY(SELECT id FROM bellringer.queues WHERE number = ANY (batch.queues)),
        pg_snapshot_xmin(snapshot)::text::bigint, pg_snapshot_xmax(snapshot)::text::bigint;
END $$;

-- Appends the messages of one FIFO queue that wait in the inbox. Called under lock_order.
CREATE FUNCTION bellringer.append_waiting(in_queue integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    batch record;
BEGIN
    WITH waiting AS MATERIALIZED (
        SELECT id FROM bellringer.inbox WHERE queue = in_queue ORDER BY id FOR UPDATE SKIP LOCKED
    ), removed AS (
        DELETE FROM bellringer.inbox WHERE id = ANY (ARRAY(SELECT id FROM waiting)) RETURNING *
    )
    SELECT array_agg(queue) AS queues, array_agg(1) AS counts, array_agg(payload ORDER BY id) AS payloads,
        array_agg(delay_seconds ORDER BY id) AS delays, array_agg(group_key ORDER BY id) AS groups,
        array_agg(deduplication_id ORDER BY id) AS deduplications
    INTO batch FROM removed;
    IF batch.queues IS NOT NULL THEN
        PERFORM bellringer.append(batch.queues, batch.counts, '{}', batch.payloads, batch.delays, batch.groups,
            batch.deduplications);
    END IF;
END $$;

-- For any client of the database, in its own transaction: the message is there if and only if the transaction commits.
-- `environment` is organisation/name; it may be left out while there is one environment only.
CREATE FUNCTION bellringer.publish(
    queue text, body bytea, delay_seconds double precision DEFAULT NULL, message_group text DEFAULT NULL,
    deduplication_id text DEFAULT NULL, attributes jsonb DEFAULT NULL, environment text DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    owners uuid[];
    target record;
    key text := deduplication_id;
    frame bytea := '\x00'::bytea || body;
    header jsonb;
BEGIN
    SELECT array_agg(found.id) INTO owners FROM bellringer.environments AS found
    WHERE environment IS NULL OR found.organisation || '/' || found.name = environment;
    IF owners IS NULL THEN
        RAISE EXCEPTION 'there is no environment %', environment USING ERRCODE = 'invalid_parameter_value';
    ELSIF cardinality(owners) > 1 THEN
        RAISE EXCEPTION 'there are several environments: say which one' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Add environment => ''organisation/name''.';
    END IF;
    SELECT * INTO target FROM bellringer.queues AS found WHERE found.environment_id = owners[1] AND found.name = queue;
    IF target.id IS NULL THEN
        RAISE EXCEPTION 'there is no queue %', queue USING ERRCODE = 'undefined_object';
    ELSIF body IS NULL THEN
        RAISE EXCEPTION 'the body must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(body) > target.max_body_bytes THEN
        RAISE EXCEPTION 'a message of queue % holds at most % bytes', queue, target.max_body_bytes
            USING ERRCODE = 'program_limit_exceeded';
    ELSIF NOT COALESCE(delay_seconds, 0) BETWEEN 0 AND 43200 THEN
        RAISE EXCEPTION 'delay_seconds must be from 0 to 43200' USING ERRCODE = 'invalid_parameter_value';
    ELSIF target.fifo <> (message_group IS NOT NULL) THEN
        RAISE EXCEPTION 'a message of a FIFO queue, and no other, needs a message_group'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT COALESCE(length(message_group), 1) BETWEEN 1 AND 128 OR NOT COALESCE(length(key), 1) BETWEEN 1 AND 128 THEN
        RAISE EXCEPTION 'message_group and deduplication_id have 1 to 128 characters'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF jsonb_typeof(attributes) <> 'object' THEN
        RAISE EXCEPTION 'attributes must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
    ELSIF target.content_deduplication AND key IS NULL THEN
        key := encode(sha256(body), 'hex');
    END IF;
    header := jsonb_strip_nulls(jsonb_build_object('g', message_group, 'd', key));
    IF attributes <> '{}' THEN
        header := header || jsonb_build_object('a', attributes);
    END IF;
    IF header <> '{}' THEN
        frame := bellringer.add_to_header(frame, header);
    END IF;
    INSERT INTO bellringer.inbox (queue, delay_seconds, group_key, deduplication_id, payload)
    VALUES (target.number, COALESCE(delay_seconds, target.delay_seconds), message_group, key, frame);
END $$;

CREATE FUNCTION bellringer.publish(
    queue text, body text, delay_seconds double precision DEFAULT NULL, message_group text DEFAULT NULL,
    deduplication_id text DEFAULT NULL, attributes jsonb DEFAULT NULL, environment text DEFAULT NULL
) RETURNS void
LANGUAGE sql AS $$
    SELECT bellringer.publish($1, convert_to($2, 'UTF8'), $3, $4, $5, $6, $7)
$$;

CREATE FUNCTION bellringer.publish(
    queue text, body jsonb, delay_seconds double precision DEFAULT NULL, message_group text DEFAULT NULL,
    deduplication_id text DEFAULT NULL, attributes jsonb DEFAULT NULL, environment text DEFAULT NULL
) RETURNS void
LANGUAGE sql AS $$
    SELECT bellringer.publish($1, convert_to($2::text, 'UTF8'), $3, $4, $5, $6, $7)
$$;

-- Messages of the first form that are not done take this way too, in their order. Counts start anew.
INSERT INTO bellringer.inbox (queue, delay_seconds, payload)
SELECT queue.number, GREATEST(EXTRACT(epoch FROM message.due_at - clock_timestamp()), 0), '\x00'::bytea || message.body
FROM bellringer.messages AS message
JOIN bellringer.queues AS queue ON queue.id = message.queue_id
WHERE message.state <> 'deleted'
ORDER BY message.id;
DELETE FROM bellringer.tallies WHERE owner IN (SELECT id FROM bellringer.queues);
DELETE FROM bellringer.tally_entries WHERE owner IN (SELECT id FROM bellringer.queues);
DROP TABLE bellringer.messages;
DROP TYPE bellringer.message_state;
