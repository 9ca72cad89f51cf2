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
    AS $$
DECLARE
    header_bytes integer;
    header text := '{}';
    encoded bytea;
    body bytea;
BEGIN
    IF get_byte(in_frame, 0) = 0 THEN
        body := substring(in_frame FROM 2);
    ELSE
        header_bytes := get_byte(in_frame, 1) << 24 | get_byte(in_frame, 2) << 16 | get_byte(in_frame, 3) << 8
            | get_byte(in_frame, 4);
        header := convert_from(substring(in_frame FROM 6 FOR header_bytes), 'UTF8');
        body := substring(in_frame FROM 6 + header_bytes);
    END IF;
    IF header = '{}' THEN
        header := in_addition::text;
    ELSE
        header := left(header, -1) || ', ' || substring(in_addition::text FROM 2);
    END IF;
    encoded := convert_to(header, 'UTF8');
    RETURN '\x01'::bytea || int4send(length(encoded)) || encoded || body;
END $$;

CREATE FUNCTION bellringer.append(in_queues integer[], in_counts integer[], in_ends integer[], in_payloads bytea[], in_delays double precision[], in_groups text[], in_deduplications text[]) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
DECLARE
    last_place integer := cardinality(in_queues);
    place integer := 1;
    next_end integer := 1;
    this_queue integer;
    next_seq bigint;
    lane bigint;
    known_seq bigint;
    is_tracked boolean;
    added_pending bigint;
    added_delayed bigint;
    groups text[];
    first_seqs bigint[] := '{}';
BEGIN
    WHILE place <= last_place LOOP
        this_queue := in_queues[place];
        added_pending := 0;
        added_delayed := 0;
        groups := '{}';
        PERFORM bellringer.lock_order(this_queue);
        SELECT last.next_seq, last.lane_after INTO next_seq, lane FROM bellringer.tail_of(this_queue) AS last;
        IF next_seq IS NULL THEN
            RAISE EXCEPTION 'there is no queue number %', this_queue USING ERRCODE = 'foreign_key_violation';
        END IF;
        WHILE place <= last_place AND in_queues[place] = this_queue LOOP
            known_seq := NULL;
            IF in_deduplications[place] IS NOT NULL THEN
                known_seq := bellringer.deduplicate(this_queue, in_deduplications[place], next_seq);
            END IF;
            IF known_seq IS NULL THEN
                is_tracked := in_groups[place] IS NOT NULL OR COALESCE(in_delays[place], 0) > 0;
                IF NOT is_tracked THEN
                    lane := lane + in_counts[place];
                ELSIF in_groups[place] IS NULL THEN
                    added_delayed := added_delayed + 1;
                ELSE
                    added_pending := added_pending + 1;
                    groups := groups || in_groups[place];
                END IF;
                INSERT INTO bellringer.chunks (queue, messages, first_seq, lane_after, sent_at, tracked, ends, payload)
                VALUES (
                    this_queue, in_counts[place], next_seq, lane, clock_timestamp(), is_tracked,
                    CASE WHEN in_counts[place] > 1 THEN in_ends[next_end : next_end + in_counts[place] - 1] END,
                    in_payloads[place]
                );
                IF is_tracked THEN
                    INSERT INTO bellringer.tracked (queue, attempts, seq, due_at, state, group_key)
                    VALUES (
                        this_queue, 0, next_seq,
                        CASE WHEN in_delays[place] > 0
                            THEN clock_timestamp() + make_interval(secs => in_delays[place]) END,
                        CASE WHEN in_groups[place] IS NULL THEN 'delayed' ELSE 'queued' END::bellringer.tracked_state,
                        in_groups[place]
                    );
                END IF;
                first_seqs := first_seqs || next_seq;
                next_seq := next_seq + in_counts[place];
            ELSE
                first_seqs := first_seqs || known_seq;
            END IF;
            IF in_counts[place] > 1 THEN
                next_end := next_end + in_counts[place];
            END IF;
            place := place + 1;
        END LOOP;
        IF added_pending + added_delayed > 0 THEN
            PERFORM bellringer.tally(this_queue, 'pending', added_pending),
                bellringer.tally(this_queue, 'delayed', added_delayed),
                bellringer.settle_groups(this_queue, groups);
        END IF;
    END LOOP;
    RETURN first_seqs;
END $$;

CREATE FUNCTION bellringer.claim(in_queue integer, in_limit integer, in_seconds double precision) RETURNS TABLE(claim_seq bigint, attempts integer, first_seq bigint, messages integer, sent_at timestamp with time zone, first_claimed_at timestamp with time zone, ends_before integer, ends integer[], payload bytea)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    settings record;
    now_at timestamptz;
    head bigint;
    place bigint;
    lane bigint;
    taken integer;
    in_lane integer := 0;
    inline_bytes integer := 0;
    first integer;
    number_taken integer;
    expired int8multirange := '{}';
    chunk record;
BEGIN
    SELECT queue.fifo, queue.paused, CASE WHEN queue.expires THEN clock_timestamp() - make_interval(secs => queue.retention_seconds) END AS oldest
    INTO settings FROM bellringer.queues AS queue WHERE queue.number = in_queue;
    IF NOT FOUND OR settings.paused THEN
        RETURN;
    ELSIF settings.fifo THEN
        PERFORM bellringer.lock_order(in_queue);
    ELSE
        PERFORM bellringer.lock_claims(in_queue);
    END IF;
    IF EXISTS (SELECT FROM bellringer.tracked WHERE queue = in_queue AND state = 'ready') THEN
        RETURN QUERY SELECT * FROM bellringer.claim_tracked(in_queue, in_limit, in_seconds);
        GET DIAGNOSTICS taken = ROW_COUNT;
    ELSE
        taken := 0;
    END IF;
    IF settings.fifo OR taken = in_limit THEN
        RETURN;
    END IF;
    SELECT last.next_seq, last.lane_after INTO head, lane FROM bellringer.head_of(in_queue) AS last;
    place := head;
    now_at := clock_timestamp();
    -- Every chunk of the lane has a message to give. A thousand that are passed by are enough for one claim.
    FOR chunk IN
        SELECT * FROM bellringer.chunks
        WHERE queue = in_queue AND first_seq >= COALESCE((
            SELECT first_seq FROM bellringer.chunks
            WHERE queue = in_queue AND first_seq <= head ORDER BY first_seq DESC LIMIT 1
        ), 0)
        ORDER BY first_seq
        LIMIT in_limit + 1000
    LOOP
        CONTINUE WHEN chunk.first_seq + chunk.messages <= place;
        EXIT WHEN taken = in_limit;
        first := GREATEST(place - chunk.first_seq, 0)::integer;
        number_taken := chunk.messages - first;
        IF chunk.tracked THEN
            NULL;
        ELSIF chunk.sent_at < settings.oldest THEN
            expired := expired + int8multirange(int8range(chunk.first_seq + first, chunk.first_seq + chunk.messages));
            lane := lane + number_taken;
        ELSE
            number_taken := LEAST(number_taken, in_limit - taken);
            lane := lane + number_taken;
            taken := taken + number_taken;
            in_lane := in_lane + number_taken;
            claim_seq := head;
            attempts := 1;
            first_seq := chunk.first_seq + first;
            messages := number_taken;
            sent_at := chunk.sent_at;
            first_claimed_at := now_at;
            ends_before := COALESCE(chunk.ends[first], 0);
            ends := CASE WHEN number_taken > 1 THEN chunk.ends[first + 1 : first + number_taken] END;
            inline_bytes := inline_bytes
                + COALESCE(chunk.ends[first + number_taken], octet_length(chunk.payload)) - ends_before;
            IF inline_bytes > 65536 THEN
                payload := NULL;
            ELSIF number_taken = chunk.messages THEN
                payload := chunk.payload;
            ELSE
                payload := substring(chunk.payload FROM 1 + ends_before
                    FOR chunk.ends[first + number_taken] - ends_before);
            END IF;
            RETURN NEXT;
        END IF;
        place := chunk.first_seq + first + number_taken;
    END LOOP;
    IF place > head THEN
        INSERT INTO bellringer.claims
            (queue, messages, first_seq, next_seq, lane_after, claimed_at, expires_at, ended_at)
        VALUES (in_queue, in_lane + bellringer.size(expired), head, place, lane, now_at,
            clock_timestamp() + make_interval(secs => in_seconds), CASE WHEN in_lane = 0 THEN clock_timestamp() END);
        IF expired <> '{}' THEN
            PERFORM bellringer.leave_claim(in_queue, head, 'expired', expired),
                bellringer.tally(in_queue, 'expired', bellringer.size(expired));
        END IF;
    END IF;
END $$;

CREATE FUNCTION bellringer.claim_tracked(in_queue integer, in_limit integer, in_seconds double precision) RETURNS TABLE(claim_seq bigint, attempts integer, first_seq bigint, messages integer, sent_at timestamp with time zone, first_claimed_at timestamp with time zone, ends_before integer, ends integer[], payload bytea)
    LANGUAGE sql
    AS $$
    WITH heads AS MATERIALIZED (
        SELECT seq, group_key FROM bellringer.tracked
        WHERE queue = in_queue AND state = 'ready'
        ORDER BY seq
        LIMIT in_limit
        FOR UPDATE SKIP LOCKED
    ), runs AS (
        SELECT seq, 0 AS place FROM heads
        UNION ALL
        SELECT follower.seq, follower.place
        FROM heads
        CROSS JOIN LATERAL (
            SELECT seq, row_number() OVER (ORDER BY seq) AS place, max(due_at) OVER (ORDER BY seq) AS latest_due_at
            FROM (
                SELECT seq, due_at FROM bellringer.tracked
                WHERE queue = in_queue AND group_key = heads.group_key AND state = 'queued'
                ORDER BY seq
                LIMIT in_limit / (SELECT count(*) FROM heads)
            ) AS waiting
        ) AS follower
        WHERE heads.group_key IS NOT NULL
            -- One moment for all: else a message could be late at its own look and in time at that of the next.
            AND (follower.latest_due_at IS NULL OR follower.latest_due_at <= (SELECT clock_timestamp()))
    ), picked AS (
        SELECT seq FROM runs ORDER BY place, seq LIMIT in_limit
    ), claimed AS (
        UPDATE bellringer.tracked AS message
        SET state = 'held', attempts = message.attempts + 1, claimed_at = clock_timestamp(),
            first_claimed_at = COALESCE(message.first_claimed_at, clock_timestamp()),
            due_at = clock_timestamp() + make_interval(secs => in_seconds)
        WHERE message.queue = in_queue AND message.seq = ANY (ARRAY(SELECT seq FROM picked))
        RETURNING message.seq, message.attempts, message.first_claimed_at
    ), counted AS (
        SELECT bellringer.tally(in_queue, 'pending', -count(*)), bellringer.tally(in_queue, 'held', count(*))
        FROM claimed HAVING count(*) > 0
    )
    SELECT 0::bigint, claimed.attempts, claimed.seq, 1, stored.sent_at, claimed.first_claimed_at, 0, NULL::integer[],
        CASE WHEN sum(octet_length(stored.frame)) OVER (ORDER BY claimed.seq) <= 65536 THEN stored.frame END
    FROM claimed
    CROSS JOIN LATERAL bellringer.frame_of(in_queue, claimed.seq) AS stored
    WHERE (SELECT count(*) FROM counted) >= 0
    ORDER BY claimed.seq
$$;

CREATE FUNCTION bellringer.collect(in_queue integer, in_from bigint, in_limit integer, OUT next_from bigint, OUT removed integer) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    settings record;
    tail record;
    head record;
    last_old record;
    expired record;
BEGIN
    removed := 0;
    SELECT expires, clock_timestamp() - make_interval(secs => retention_seconds) AS oldest_kept INTO settings
    FROM bellringer.queues WHERE number = in_queue;
    -- A look at the oldest chunk, before any lock is taken. Index: chunks_pkey.
    IF NOT (
        SELECT sent_at < settings.oldest_kept FROM bellringer.chunks
        WHERE queue = in_queue AND first_seq >= in_from ORDER BY first_seq LIMIT 1
    ) IS TRUE THEN
        RETURN;
    END IF;
    PERFORM bellringer.lock_order(in_queue);
    PERFORM bellringer.lock_claims(in_queue);
    SELECT * INTO head FROM bellringer.head_of(in_queue);
    SELECT * INTO tail FROM bellringer.tail_of(in_queue);
    SELECT first_seq + messages AS next_seq, lane_after INTO last_old
    FROM (
        SELECT first_seq, messages, lane_after, sent_at FROM bellringer.chunks
        WHERE queue = in_queue AND first_seq >= in_from ORDER BY first_seq LIMIT in_limit
    ) AS oldest
    WHERE sent_at < settings.oldest_kept AND (settings.expires OR first_seq + messages <= head.next_seq)
    ORDER BY first_seq DESC LIMIT 1;
    IF last_old.next_seq IS NULL THEN
        RETURN;
    END IF;
    next_from := last_old.next_seq;
    IF settings.expires THEN
        IF head.next_seq < last_old.next_seq THEN
            INSERT INTO bellringer.claims
                (queue, messages, first_seq, next_seq, lane_after, claimed_at, expires_at, ended_at)
            VALUES (in_queue, last_old.lane_after - head.lane_after, head.next_seq, last_old.next_seq,
                last_old.lane_after, clock_timestamp(), clock_timestamp(), clock_timestamp());
            PERFORM bellringer.tally(in_queue, 'expired', last_old.lane_after - head.lane_after),
                bellringer.tally(in_queue, 'left', last_old.lane_after - head.lane_after);
        END IF;
        WITH gone AS (
            DELETE FROM bellringer.tracked
            WHERE queue = in_queue AND seq >= in_from AND seq < last_old.next_seq AND state <> 'held'
            RETURNING state, group_key
        )
        SELECT count(*) FILTER (WHERE state IN ('queued', 'ready')) AS pending,
            count(*) FILTER (WHERE state = 'delayed') AS delayed,
            array_agg(group_key) FILTER (WHERE group_key IS NOT NULL) AS groups
        INTO expired FROM gone;
        PERFORM bellringer.tally(in_queue, 'pending', -expired.pending),
            bellringer.tally(in_queue, 'delayed', -expired.delayed),
            bellringer.tally(in_queue, 'expired', expired.pending + expired.delayed);
        IF expired.groups IS NOT NULL THEN
            PERFORM bellringer.settle_groups(in_queue, expired.groups);
        END IF;
    END IF;
    -- Chunks are looked up by their numbers, not by what is left around them: one that has to stay holds up no other.
    DELETE FROM bellringer.chunks AS chunk
    WHERE queue = in_queue AND first_seq >= in_from AND first_seq < last_old.next_seq
        AND NOT EXISTS (
            SELECT FROM bellringer.tracked
            WHERE queue = in_queue AND seq >= chunk.first_seq AND seq < chunk.first_seq + chunk.messages
        )
        AND NOT EXISTS (
            SELECT FROM bellringer.claims
            WHERE queue = in_queue AND ended_at IS NULL
                AND first_seq < chunk.first_seq + chunk.messages AND next_seq > chunk.first_seq
        );
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF last_old.next_seq = tail.next_seq THEN
        UPDATE bellringer.queues SET floor_seq = tail.next_seq, floor_lane = tail.lane_after WHERE number = in_queue;
    END IF;
    -- The newest claim stays: it tells where the next one begins.
    WITH gone AS (
        DELETE FROM bellringer.claims
        WHERE queue = in_queue AND first_seq >= in_from AND next_seq <= last_old.next_seq AND ended_at IS NOT NULL
            AND first_seq < (SELECT max(first_seq) FROM bellringer.claims WHERE queue = in_queue)
        RETURNING first_seq
    )
    DELETE FROM bellringer.claim_outcomes WHERE queue = in_queue AND claim_seq IN (SELECT first_seq FROM gone);
    DELETE FROM bellringer.tracked_outcomes AS past
    WHERE queue = in_queue AND seq >= in_from AND seq < last_old.next_seq
        AND NOT EXISTS (SELECT FROM bellringer.tracked WHERE queue = in_queue AND seq = past.seq);
END $$;

CREATE FUNCTION bellringer.dead_letter(in_queue integer, in_seq bigint, in_attempts integer, in_claimed_at timestamp with time zone, in_group text, in_letters integer) RETURNS void
    LANGUAGE sql
    AS $$
    INSERT INTO bellringer.inbox (queue, group_key, payload)
    SELECT in_letters, in_group, bellringer.add_to_header(stored.frame, jsonb_build_object(
        'from', jsonb_build_object('queue', queue.name, 'queue_id', queue.id, 'id', in_seq, 'attempts', in_attempts)))
    FROM bellringer.frame_of(in_queue, in_seq) AS stored, bellringer.queues AS queue
    WHERE queue.number = in_queue;
    INSERT INTO bellringer.tracked_outcomes (queue, attempts, seq, claimed_at, at, outcome)
    VALUES (in_queue, in_attempts, in_seq, in_claimed_at, clock_timestamp(), 'dead_lettered');
    SELECT bellringer.tally(in_queue, 'dead_lettered', 1)
$$;

CREATE FUNCTION bellringer.dead_letter_queue_of(in_queue integer, in_attempts integer) RETURNS integer
    LANGUAGE sql STABLE
    AS $$
    SELECT letters.number
    FROM bellringer.queues AS queue
    JOIN bellringer.queues AS letters
        ON letters.environment_id = queue.environment_id AND letters.name = queue.dead_letter_queue
            AND letters.fifo = queue.fifo
    WHERE queue.number = in_queue AND in_attempts >= queue.max_receives
$$;

CREATE FUNCTION bellringer.deduplicate(in_queue integer, in_id text, in_seq bigint) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    known_seq bigint;
BEGIN
    SELECT seq INTO known_seq FROM bellringer.deduplications
    WHERE queue = in_queue AND deduplication_id = in_id AND expires_at > clock_timestamp();
    IF NOT FOUND THEN
        INSERT INTO bellringer.deduplications (queue, deduplication_id, seq, expires_at)
        VALUES (in_queue, in_id, in_seq, clock_timestamp() + interval '5 minutes')
        ON CONFLICT (queue, deduplication_id) DO UPDATE SET seq = excluded.seq, expires_at = excluded.expires_at;
    END IF;
    RETURN known_seq;
END $$;

CREATE FUNCTION bellringer.drain_inbox(in_after bigint, in_limit integer, in_bytes bigint) RETURNS TABLE(highest bigint, moved bigint, queue_ids uuid[], all_over_before bigint, next_transaction bigint)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    batch record;
    snapshot pg_snapshot;
BEGIN
    -- One at a time, or a later row could be appended before an earlier one. Until its statement ends, so also when
    -- the process that asked is stopped.
    PERFORM pg_advisory_xact_lock(1111837769);
    snapshot := pg_current_snapshot();
    WITH first_rows AS MATERIALIZED (
        SELECT id, octet_length(payload) AS bytes FROM bellringer.inbox
        WHERE id > in_after ORDER BY id LIMIT in_limit FOR UPDATE SKIP LOCKED
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

CREATE FUNCTION bellringer.due_queues() RETURNS TABLE(number integer, id uuid)
    LANGUAGE sql STABLE
    AS $$
    SELECT queue.number, queue.id FROM bellringer.queues AS queue
    WHERE EXISTS (
        SELECT FROM bellringer.claims
        WHERE queue = queue.number AND ended_at IS NULL AND expires_at <= (SELECT clock_timestamp())
    ) OR EXISTS (
        SELECT FROM bellringer.tracked
        WHERE queue = queue.number AND state IN ('delayed', 'held') AND due_at <= (SELECT clock_timestamp())
    )
$$;

CREATE FUNCTION bellringer.finish(in_queue integer, in_claim bigint, in_seqs int8multirange, OUT finished int8multirange, OUT repeated int8multirange) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    claim record;
    gone int8multirange;
    extended int8multirange;
    done int8multirange;
BEGIN
    finished := '{}';
    repeated := '{}';
    SELECT messages, ended_at INTO claim FROM bellringer.claims
    WHERE queue = in_queue AND first_seq = in_claim FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- A statement of its own: what it sees was committed before the lock was ours.
    SELECT COALESCE(range_agg(seqs), '{}'), COALESCE(range_agg(seqs) FILTER (WHERE outcome = 'extended'), '{}'),
        COALESCE(range_agg(seqs) FILTER (WHERE outcome IN ('finished', 'purged', 'expired')), '{}')
    INTO gone, extended, done
    FROM bellringer.claim_outcomes WHERE queue = in_queue AND claim_seq = in_claim;
    IF claim.ended_at IS NULL THEN
        finished := in_seqs - gone;
        repeated := in_seqs * done;
        IF bellringer.size(finished + gone) = claim.messages THEN
            UPDATE bellringer.claims SET ended_at = clock_timestamp() WHERE queue = in_queue AND first_seq = in_claim;
        ELSIF NOT isempty(finished) THEN
            INSERT INTO bellringer.claim_outcomes (queue, outcome, claim_seq, at, seqs)
            VALUES (in_queue, 'finished', in_claim, clock_timestamp(), finished);
        END IF;
    ELSE
        repeated := in_seqs - (gone - done);
    END IF;
    IF in_seqs && extended THEN
        SELECT finished + COALESCE(range_agg(int8range(seq, seq + 1)) FILTER (WHERE was_held), '{}'),
            repeated + COALESCE(range_agg(int8range(seq, seq + 1)) FILTER (WHERE NOT was_held), '{}')
        INTO finished, repeated
        FROM (
            SELECT array_agg(in_queue) AS queues, array_agg(seq) AS seqs, array_agg(1) AS attempts
            FROM unnest(in_seqs * extended) AS part, generate_series(lower(part), upper(part) - 1) AS seq
        ) AS wanted
        CROSS JOIN LATERAL bellringer.finish_tracked(wanted.queues, wanted.seqs, wanted.attempts);
    END IF;
END $$;

CREATE FUNCTION bellringer.finish_tracked(in_queues integer[], in_seqs bigint[], in_attempts integer[]) RETURNS TABLE(queue integer, seq bigint, attempts integer, was_held boolean)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    removed record;
    touched record;
BEGIN
    PERFORM bellringer.lock_order_of_fifo(in_queues);
    -- Sorted, so that two calls with the same messages wait for each other in one order.
    WITH held AS MATERIALIZED (
        SELECT message.queue, message.seq
        FROM (
            SELECT DISTINCT * FROM unnest(in_queues, in_seqs, in_attempts) AS asked (queue, seq, attempts)
            ORDER BY queue, seq
        ) AS wanted
        CROSS JOIN LATERAL (
            SELECT queue, seq FROM bellringer.tracked
            WHERE queue = wanted.queue AND seq = wanted.seq AND attempts = wanted.attempts AND state = 'held'
            FOR UPDATE
        ) AS message
    ), gone AS (
        DELETE FROM bellringer.tracked AS message USING held
        WHERE message.queue = held.queue AND message.seq = held.seq
        RETURNING message.queue, message.seq, message.attempts, message.claimed_at, message.group_key
    ), recorded AS (
        INSERT INTO bellringer.tracked_outcomes (queue, attempts, seq, claimed_at, at, outcome)
        SELECT queue, attempts, seq, claimed_at, clock_timestamp(), 'finished' FROM gone
    )
    SELECT COALESCE(array_agg(queue), '{}') AS queues, COALESCE(array_agg(seq), '{}') AS seqs,
        COALESCE(array_agg(attempts), '{}') AS attempts, COALESCE(array_agg(group_key), '{}') AS groups
    INTO removed FROM gone;
    FOR touched IN
        SELECT one.queue, count(*) AS messages, array_agg(one.key) FILTER (WHERE one.key IS NOT NULL) AS groups
        FROM unnest(removed.queues, removed.groups) AS one (queue, key) GROUP BY one.queue ORDER BY one.queue
    LOOP
        PERFORM bellringer.tally(touched.queue, 'held', -touched.messages),
            bellringer.tally(touched.queue, 'deleted', touched.messages);
        IF touched.groups IS NOT NULL THEN
            PERFORM bellringer.settle_groups(touched.queue, touched.groups);
        END IF;
    END LOOP;
    RETURN QUERY
    SELECT one.queue, one.seq, one.attempts, true
    FROM unnest(removed.queues, removed.seqs, removed.attempts) AS one (queue, seq, attempts)
    UNION ALL
    SELECT DISTINCT past.queue, past.seq, past.attempts, false
    FROM unnest(in_queues, in_seqs, in_attempts) AS asked (queue, seq, attempts)
    JOIN bellringer.tracked_outcomes AS past
        ON past.queue = asked.queue AND past.seq = asked.seq AND past.attempts = asked.attempts
    WHERE (past.outcome = 'finished' OR past.outcome = 'purged' AND past.claimed_at IS NOT NULL)
        AND (past.queue, past.seq) NOT IN (SELECT * FROM unnest(removed.queues, removed.seqs));
END $$;

CREATE FUNCTION bellringer.frame_of(in_queue integer, in_seq bigint, OUT sent_at timestamp with time zone, OUT frame bytea) RETURNS record
    LANGUAGE sql STABLE
    AS $$
    SELECT chunk.sent_at,
        CASE WHEN chunk.ends IS NULL THEN chunk.payload ELSE substring(chunk.payload
            FROM 1 + COALESCE(chunk.ends[(in_seq - chunk.first_seq)::integer], 0)
            FOR chunk.ends[(in_seq - chunk.first_seq)::integer + 1]
                - COALESCE(chunk.ends[(in_seq - chunk.first_seq)::integer], 0)) END
    FROM (
        SELECT * FROM bellringer.chunks WHERE queue = in_queue AND first_seq <= in_seq ORDER BY first_seq DESC LIMIT 1
    ) AS chunk
    WHERE in_seq < chunk.first_seq + chunk.messages
$$;

CREATE FUNCTION bellringer.give_back(in_queue integer, in_seqs bigint[], in_seconds double precision, in_unseen boolean) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    given record;
    lost record;
BEGIN
    WITH gone AS (
        DELETE FROM bellringer.tracked AS message
        WHERE queue = in_queue AND seq = ANY (in_seqs) AND NOT in_unseen
            AND bellringer.dead_letter_queue_of(in_queue, attempts) IS NOT NULL
        RETURNING seq, attempts, claimed_at, group_key
    )
    SELECT count(*) AS messages, array_agg(group_key) FILTER (WHERE group_key IS NOT NULL) AS groups,
        count(bellringer.dead_letter(in_queue, seq, attempts, claimed_at, group_key,
            bellringer.dead_letter_queue_of(in_queue, attempts)))
    INTO lost FROM gone;
    INSERT INTO bellringer.tracked_outcomes (queue, attempts, seq, claimed_at, at, outcome)
    SELECT queue, attempts, seq, claimed_at, clock_timestamp(), 'returned' FROM bellringer.tracked
    WHERE queue = in_queue AND seq = ANY (in_seqs) AND NOT in_unseen;
    WITH returned AS (
        UPDATE bellringer.tracked
        SET claimed_at = NULL, attempts = attempts - in_unseen::integer,
            first_claimed_at = CASE WHEN attempts > in_unseen::integer THEN first_claimed_at END,
            due_at = CASE WHEN in_seconds > 0 THEN clock_timestamp() + make_interval(secs => in_seconds) END,
            state = CASE WHEN group_key IS NOT NULL THEN 'queued' WHEN in_seconds > 0 THEN 'delayed'
                ELSE 'ready' END::bellringer.tracked_state
        WHERE queue = in_queue AND seq = ANY (in_seqs)
        RETURNING group_key, state
    )
    SELECT count(*) FILTER (WHERE state = 'delayed') AS delayed, count(*) FILTER (WHERE state <> 'delayed') AS pending,
        array_agg(group_key) FILTER (WHERE group_key IS NOT NULL) AS groups
    INTO given FROM returned;
    PERFORM bellringer.tally(in_queue, 'held', -(given.delayed + given.pending + lost.messages)),
        bellringer.tally(in_queue, 'delayed', given.delayed), bellringer.tally(in_queue, 'pending', given.pending),
        bellringer.tally(in_queue, 'redelivered', CASE WHEN in_unseen THEN 0 ELSE given.delayed + given.pending END);
    IF given.groups IS NOT NULL OR lost.groups IS NOT NULL THEN
        PERFORM bellringer.settle_groups(in_queue, given.groups || lost.groups);
    END IF;
END $$;

CREATE FUNCTION bellringer.head_of(in_queue integer, OUT next_seq bigint, OUT lane_after bigint) RETURNS record
    LANGUAGE sql STABLE
    AS $$
    SELECT CASE WHEN last.next_seq > queue.floor_seq THEN last.next_seq ELSE queue.floor_seq END,
        CASE WHEN last.next_seq > queue.floor_seq THEN last.lane_after ELSE queue.floor_lane END
    FROM bellringer.queues AS queue
    LEFT JOIN LATERAL (
        SELECT next_seq, lane_after FROM bellringer.claims WHERE queue = in_queue ORDER BY first_seq DESC LIMIT 1
    ) AS last ON true
    WHERE queue.number = in_queue
$$;

CREATE FUNCTION bellringer.leave_claim(in_queue integer, in_claim bigint, in_outcome bellringer.outcome, in_seqs int8multirange) RETURNS void
    LANGUAGE sql
    AS $$
    INSERT INTO bellringer.claim_outcomes (queue, outcome, claim_seq, at, seqs)
    VALUES (in_queue, in_outcome, in_claim, clock_timestamp(), in_seqs);
    SELECT bellringer.tally(in_queue, 'left', bellringer.size(in_seqs))
$$;

CREATE FUNCTION bellringer.lock_claims(in_queue integer) RETURNS void
    LANGUAGE sql
    AS $$ SELECT pg_advisory_xact_lock(1111837763, in_queue) $$;

CREATE FUNCTION bellringer.lock_order(in_queue integer) RETURNS void
    LANGUAGE sql
    AS $$ SELECT pg_advisory_xact_lock(1111837761, in_queue) $$;

CREATE FUNCTION bellringer.lock_order_of_fifo(in_queues integer[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    fifo_queue integer;
BEGIN
    FOR fifo_queue IN SELECT number FROM bellringer.queues WHERE number = ANY (in_queues) AND fifo ORDER BY number LOOP
        PERFORM bellringer.lock_order(fifo_queue);
    END LOOP;
END $$;

CREATE FUNCTION bellringer.passed_by(in_queue integer, in_from bigint, in_to bigint) RETURNS int8multirange
    LANGUAGE sql STABLE
    AS $$
    SELECT COALESCE(range_agg(int8range(first_seq, first_seq + 1)), '{}') FROM bellringer.chunks
    WHERE queue = in_queue AND first_seq >= in_from AND first_seq < in_to AND tracked
$$;

CREATE FUNCTION bellringer.publish(queue text, body bytea, delay_seconds double precision DEFAULT NULL::double precision, message_group text DEFAULT NULL::text, deduplication_id text DEFAULT NULL::text, attributes jsonb DEFAULT NULL::jsonb, environment text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION bellringer.publish(queue text, body jsonb, delay_seconds double precision DEFAULT NULL::double precision, message_group text DEFAULT NULL::text, deduplication_id text DEFAULT NULL::text, attributes jsonb DEFAULT NULL::jsonb, environment text DEFAULT NULL::text) RETURNS void
    LANGUAGE sql
    AS $_$
    SELECT bellringer.publish($1, convert_to($2::text, 'UTF8'), $3, $4, $5, $6, $7)
$_$;

CREATE FUNCTION bellringer.publish(queue text, body text, delay_seconds double precision DEFAULT NULL::double precision, message_group text DEFAULT NULL::text, deduplication_id text DEFAULT NULL::text, attributes jsonb DEFAULT NULL::jsonb, environment text DEFAULT NULL::text) RETURNS void
    LANGUAGE sql
    AS $_$
    SELECT bellringer.publish($1, convert_to($2, 'UTF8'), $3, $4, $5, $6, $7)
$_$;

CREATE FUNCTION bellringer.purge(in_queue integer) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    tail record;
    head record;
    claim record;
    unfinished int8multirange;
    counted record;
    purged bigint := 0;
BEGIN
    -- Before the locks: who drains the inbox holds its rows when it asks for the order of the queue.
    DELETE FROM bellringer.inbox WHERE queue = in_queue;
    PERFORM bellringer.lock_order(in_queue);
    PERFORM bellringer.lock_claims(in_queue);
    DELETE FROM bellringer.deduplications WHERE queue = in_queue;
    FOR claim IN
        SELECT first_seq, next_seq FROM bellringer.claims
        WHERE queue = in_queue AND ended_at IS NULL FOR UPDATE SKIP LOCKED
    LOOP
        SELECT int8multirange(int8range(claim.first_seq, claim.next_seq)) - COALESCE(range_agg(seqs), '{}')
            - bellringer.passed_by(in_queue, claim.first_seq, claim.next_seq)
        INTO unfinished
        FROM bellringer.claim_outcomes WHERE queue = in_queue AND claim_seq = claim.first_seq;
        PERFORM bellringer.leave_claim(in_queue, claim.first_seq, 'purged', unfinished);
        UPDATE bellringer.claims SET ended_at = clock_timestamp()
        WHERE queue = in_queue AND first_seq = claim.first_seq;
        purged := purged + bellringer.size(unfinished);
    END LOOP;
    SELECT * INTO head FROM bellringer.head_of(in_queue);
    SELECT * INTO tail FROM bellringer.tail_of(in_queue);
    IF tail.next_seq > head.next_seq THEN
        INSERT INTO bellringer.claims
            (queue, messages, first_seq, next_seq, lane_after, claimed_at, expires_at, ended_at)
        VALUES (in_queue, tail.lane_after - head.lane_after, head.next_seq, tail.next_seq, tail.lane_after,
            clock_timestamp(), clock_timestamp(), clock_timestamp());
        INSERT INTO bellringer.claim_outcomes (queue, outcome, claim_seq, at, seqs)
        VALUES (in_queue, 'purged', head.next_seq, clock_timestamp(),
            int8multirange(int8range(head.next_seq, tail.next_seq)));
        PERFORM bellringer.tally(in_queue, 'left', tail.lane_after - head.lane_after);
        purged := purged + tail.lane_after - head.lane_after;
    END IF;
    WITH locked AS MATERIALIZED (
        SELECT seq FROM bellringer.tracked WHERE queue = in_queue FOR UPDATE SKIP LOCKED
    ), removed AS (
        DELETE FROM bellringer.tracked AS message USING locked
        WHERE message.queue = in_queue AND message.seq = locked.seq
        RETURNING message.seq, message.attempts, message.claimed_at, message.state
    ), recorded AS (
        INSERT INTO bellringer.tracked_outcomes (queue, attempts, seq, claimed_at, at, outcome)
        SELECT in_queue, attempts, seq, claimed_at, clock_timestamp(), 'purged' FROM removed
    )
    SELECT count(*) FILTER (WHERE state IN ('queued', 'ready')) AS pending,
        count(*) FILTER (WHERE state = 'delayed') AS delayed, count(*) FILTER (WHERE state = 'held') AS held
    INTO counted FROM removed;
    purged := purged + counted.pending + counted.delayed + counted.held;
    PERFORM bellringer.tally(in_queue, 'pending', -counted.pending),
        bellringer.tally(in_queue, 'delayed', -counted.delayed), bellringer.tally(in_queue, 'held', -counted.held),
        bellringer.tally(in_queue, 'purged', purged);
    RETURN purged;
END $$;

CREATE FUNCTION bellringer.put_back(in_queue integer, in_claim bigint, in_seqs int8multirange, in_seconds double precision, in_keep boolean, in_unseen boolean) RETURNS int8multirange
    LANGUAGE plpgsql
    AS $$
DECLARE
    claim record;
    gone int8multirange;
    extended int8multirange;
    moving int8multirange := '{}';
    still_held int8multirange;
BEGIN
    SELECT messages, claimed_at, ended_at INTO claim FROM bellringer.claims
    WHERE queue = in_queue AND first_seq = in_claim FOR UPDATE;
    IF NOT FOUND THEN
        RETURN moving;
    END IF;
    -- A statement of its own: what it sees was committed before the lock was ours.
    SELECT COALESCE(range_agg(seqs), '{}'), COALESCE(range_agg(seqs) FILTER (WHERE outcome = 'extended'), '{}')
    INTO gone, extended
    FROM bellringer.claim_outcomes WHERE queue = in_queue AND claim_seq = in_claim;
    IF claim.ended_at IS NULL THEN
        moving := in_seqs - gone;
    END IF;
    IF in_keep AND NOT isempty(moving) AND bellringer.size(moving + gone) = claim.messages THEN
        UPDATE bellringer.claims SET expires_at = clock_timestamp() + make_interval(secs => in_seconds)
        WHERE queue = in_queue AND first_seq = in_claim;
    ELSIF NOT isempty(moving) THEN
        PERFORM bellringer.leave_claim(in_queue, in_claim,
            CASE WHEN in_keep THEN 'extended' ELSE 'returned' END::bellringer.outcome, moving);
        PERFORM bellringer.track(in_queue, moving, CASE WHEN in_unseen THEN 0 ELSE 1 END, claim.claimed_at,
            in_seconds, in_keep);
        IF bellringer.size(moving + gone) = claim.messages THEN
            UPDATE bellringer.claims SET ended_at = clock_timestamp() WHERE queue = in_queue AND first_seq = in_claim;
        END IF;
    END IF;
    IF in_seqs && extended THEN
        SELECT COALESCE(range_agg(int8range(held.seq, held.seq + 1)), '{}') INTO still_held
        FROM (
            SELECT array_agg(seq) AS seqs, array_agg(1) AS attempts
            FROM unnest(in_seqs * extended) AS part, generate_series(lower(part), upper(part) - 1) AS seq
        ) AS wanted
        CROSS JOIN LATERAL bellringer.put_back_tracked(
            in_queue, wanted.seqs, wanted.attempts, in_seconds, in_keep, in_unseen
        ) AS held (seq);
        moving := moving + still_held;
    END IF;
    RETURN moving;
END $$;

CREATE FUNCTION bellringer.put_back_tracked(in_queue integer, in_seqs bigint[], in_attempts integer[], in_seconds double precision, in_keep boolean, in_unseen boolean) RETURNS SETOF bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    held_seqs bigint[];
BEGIN
    PERFORM bellringer.lock_order_of_fifo(ARRAY[in_queue]);
    SELECT COALESCE(array_agg(message.seq), '{}') INTO held_seqs
    FROM (SELECT DISTINCT * FROM unnest(in_seqs, in_attempts) AS asked (seq, attempts) ORDER BY seq) AS wanted
    CROSS JOIN LATERAL (
        SELECT seq FROM bellringer.tracked
        WHERE queue = in_queue AND seq = wanted.seq AND attempts = wanted.attempts AND state = 'held'
        FOR UPDATE
    ) AS message;
    IF in_keep THEN
        UPDATE bellringer.tracked SET due_at = clock_timestamp() + make_interval(secs => in_seconds)
        WHERE queue = in_queue AND seq = ANY (held_seqs);
    ELSE
        PERFORM bellringer.give_back(in_queue, held_seqs, in_seconds, in_unseen);
    END IF;
    RETURN QUERY SELECT unnest(held_seqs);
END $$;

CREATE FUNCTION bellringer.run_of(in_queue integer, in_first_seq bigint, in_messages integer, OUT ends_before integer, OUT ends integer[], OUT payload bytea) RETURNS record
    LANGUAGE sql STABLE
    AS $$
    SELECT run.ends_before, CASE WHEN in_messages > 1 THEN run.ends END,
        CASE WHEN run.ends IS NULL THEN run.payload
            ELSE substring(run.payload FROM 1 + run.ends_before FOR run.ends[in_messages] - run.ends_before) END
    FROM (
        SELECT payload, COALESCE(ends[(in_first_seq - first_seq)::integer], 0) AS ends_before,
            ends[(in_first_seq - first_seq)::integer + 1 : (in_first_seq - first_seq)::integer + in_messages] AS ends
        FROM bellringer.chunks
        WHERE queue = in_queue AND first_seq <= in_first_seq
        ORDER BY first_seq DESC LIMIT 1
    ) AS run
$$;

CREATE FUNCTION bellringer.settle_groups(in_queue integer, in_groups text[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    delayed bigint;
BEGIN
    WITH promoted AS (
        UPDATE bellringer.tracked AS message
        SET state = CASE WHEN message.due_at > clock_timestamp() THEN 'delayed' ELSE 'ready' END::bellringer.tracked_state
        FROM (
            SELECT head.seq
            FROM (SELECT DISTINCT unnest(in_groups) AS key) AS touched
            CROSS JOIN LATERAL (
                SELECT seq FROM bellringer.tracked
                WHERE queue = in_queue AND group_key = touched.key AND state = 'queued' ORDER BY seq LIMIT 1
            ) AS head
            WHERE NOT EXISTS (
                SELECT FROM bellringer.tracked
                WHERE queue = in_queue AND group_key = touched.key AND state IN ('delayed', 'ready', 'held')
            )
        ) AS head
        WHERE message.queue = in_queue AND message.seq = head.seq
        RETURNING message.state
    )
    SELECT count(*) FILTER (WHERE state = 'delayed') INTO delayed FROM promoted;
    PERFORM bellringer.tally(in_queue, 'pending', -delayed), bellringer.tally(in_queue, 'delayed', delayed)
    WHERE delayed > 0;
END $$;

CREATE FUNCTION bellringer.size(in_seqs int8multirange) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT COALESCE(sum(upper(one) - lower(one)), 0)::bigint FROM unnest(in_seqs) AS one
$$;

CREATE FUNCTION bellringer.sweep(in_queue integer, in_limit integer) RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
    claim record;
    unfinished int8multirange;
    swept integer := 0;
    over_seqs bigint[];
    woken bigint;
BEGIN
    PERFORM bellringer.lock_order_of_fifo(ARRAY[in_queue]);
    FOR claim IN
        SELECT first_seq, next_seq, claimed_at FROM bellringer.claims
        WHERE queue = in_queue AND ended_at IS NULL AND expires_at <= (SELECT clock_timestamp())
        ORDER BY expires_at
        LIMIT in_limit
        FOR UPDATE SKIP LOCKED
    LOOP
        swept := swept + 1;
        -- A statement of its own: what it sees was committed before the lock was ours.
        SELECT int8multirange(int8range(claim.first_seq, claim.next_seq)) - COALESCE(range_agg(seqs), '{}')
            - bellringer.passed_by(in_queue, claim.first_seq, claim.next_seq)
        INTO unfinished
        FROM bellringer.claim_outcomes WHERE queue = in_queue AND claim_seq = claim.first_seq;
        PERFORM bellringer.leave_claim(in_queue, claim.first_seq, 'returned', unfinished);
        PERFORM bellringer.track(in_queue, unfinished, 1, claim.claimed_at, 0, false);
        UPDATE bellringer.claims SET ended_at = clock_timestamp()
        WHERE queue = in_queue AND first_seq = claim.first_seq;
    END LOOP;
    WITH over AS MATERIALIZED (
        SELECT seq, state FROM bellringer.tracked
        WHERE queue = in_queue AND state IN ('delayed', 'held') AND due_at <= (SELECT clock_timestamp())
        ORDER BY due_at
        LIMIT in_limit
        FOR UPDATE SKIP LOCKED
    ), woken_up AS (
        UPDATE bellringer.tracked SET state = 'ready', due_at = NULL
        WHERE queue = in_queue AND seq = ANY (ARRAY(SELECT seq FROM over WHERE state = 'delayed'))
        RETURNING seq
    )
    SELECT (SELECT COALESCE(array_agg(seq), '{}') FROM over WHERE state = 'held'), (SELECT count(*) FROM woken_up)
    INTO over_seqs, woken;
    PERFORM bellringer.tally(in_queue, 'delayed', -woken), bellringer.tally(in_queue, 'pending', woken);
    IF over_seqs <> '{}' THEN
        PERFORM bellringer.give_back(in_queue, over_seqs, 0, false);
    END IF;
    RETURN swept + woken + cardinality(over_seqs);
END $$;

CREATE FUNCTION bellringer.tail_of(in_queue integer, OUT next_seq bigint, OUT lane_after bigint) RETURNS record
    LANGUAGE sql STABLE
    AS $$
    SELECT CASE WHEN last.next_seq > queue.floor_seq THEN last.next_seq ELSE queue.floor_seq END,
        CASE WHEN last.next_seq > queue.floor_seq THEN last.lane_after ELSE queue.floor_lane END
    FROM bellringer.queues AS queue
    LEFT JOIN LATERAL (
        SELECT first_seq + messages AS next_seq, lane_after FROM bellringer.chunks
        WHERE queue = in_queue ORDER BY first_seq DESC LIMIT 1
    ) AS last ON true
    WHERE queue.number = in_queue
$$;

CREATE FUNCTION bellringer.tally(in_queue integer, in_name text, in_change bigint) RETURNS void
    LANGUAGE sql
    AS $$
    INSERT INTO bellringer.tally_entries (owner, name, change)
    SELECT id, in_name, in_change FROM bellringer.queues WHERE number = in_queue AND in_change <> 0
$$;

CREATE FUNCTION bellringer.track(in_queue integer, in_seqs int8multirange, in_attempts integer, in_claimed_at timestamp with time zone, in_seconds double precision, in_keep boolean) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    new_state bellringer.tracked_state := CASE WHEN in_keep THEN 'held' WHEN in_seconds > 0 THEN 'delayed'
        ELSE 'ready' END;
    letters integer := CASE WHEN NOT in_keep THEN bellringer.dead_letter_queue_of(in_queue, in_attempts) END;
    moved bigint := bellringer.size(in_seqs);
BEGIN
    IF letters IS NOT NULL THEN
        PERFORM bellringer.dead_letter(in_queue, seq, in_attempts, in_claimed_at, NULL, letters)
        FROM unnest(in_seqs) AS part, generate_series(lower(part), upper(part) - 1) AS seq;
        RETURN;
    END IF;
    INSERT INTO bellringer.tracked (queue, attempts, seq, due_at, first_claimed_at, claimed_at, state)
    SELECT in_queue, in_attempts, seq,
        CASE WHEN in_seconds > 0 THEN clock_timestamp() + make_interval(secs => in_seconds) END,
        CASE WHEN in_attempts > 0 THEN in_claimed_at END, CASE WHEN in_keep THEN in_claimed_at END, new_state
    FROM unnest(in_seqs) AS part, generate_series(lower(part), upper(part) - 1) AS seq;
    PERFORM bellringer.tally(in_queue, CASE new_state WHEN 'ready' THEN 'pending' ELSE new_state::text END, moved);
    IF NOT in_keep AND in_attempts > 0 THEN
        PERFORM bellringer.tally(in_queue, 'redelivered', moved);
    END IF;
END $$;

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

ALTER TABLE ONLY bellringer.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (environment_id, key);

ALTER TABLE ONLY bellringer.inbox
    ADD CONSTRAINT inbox_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (name);

ALTER TABLE ONLY bellringer.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (subsystem, number);

ALTER TABLE ONLY bellringer.moves
    ADD CONSTRAINT moves_pkey PRIMARY KEY (id);

ALTER TABLE ONLY bellringer.notifications
    ADD CONSTRAINT notifications_pkey PRIMARY KEY (id);

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

ALTER TABLE ONLY bellringer.tallies
    ADD CONSTRAINT tallies_pkey PRIMARY KEY (owner, name);

ALTER TABLE ONLY bellringer.tally_entries
    ADD CONSTRAINT tally_entries_pkey PRIMARY KEY (id);

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

CREATE UNIQUE INDEX moves_running ON bellringer.moves USING btree (source_id) WHERE (state = 'running'::text);

CREATE INDEX moves_source ON bellringer.moves USING btree (source_id, started_at);

CREATE INDEX notifications_environment ON bellringer.notifications USING btree (environment_id, id);

CREATE INDEX tally_entries_owner ON bellringer.tally_entries USING btree (owner);

CREATE INDEX tracked_busy_group ON bellringer.tracked USING btree (queue, group_key) WHERE ((group_key IS NOT NULL) AND (state = ANY (ARRAY['delayed'::bellringer.tracked_state, 'ready'::bellringer.tracked_state, 'held'::bellringer.tracked_state])));

CREATE INDEX tracked_due ON bellringer.tracked USING btree (queue, due_at) WHERE (state = ANY (ARRAY['delayed'::bellringer.tracked_state, 'held'::bellringer.tracked_state]));

CREATE INDEX tracked_group ON bellringer.tracked USING btree (queue, group_key, seq) WHERE (state = 'queued'::bellringer.tracked_state);

CREATE INDEX tracked_outcomes_seq ON bellringer.tracked_outcomes USING btree (queue, seq);

CREATE INDEX tracked_ready ON bellringer.tracked USING btree (queue, seq) WHERE (state = 'ready'::bellringer.tracked_state);

ALTER TABLE ONLY bellringer.api_keys
    ADD CONSTRAINT api_keys_environment_id_fkey FOREIGN KEY (environment_id) REFERENCES bellringer.environments(id);

ALTER TABLE ONLY bellringer.deliveries
    ADD CONSTRAINT deliveries_email_id_fkey FOREIGN KEY (email_id) REFERENCES bellringer.emails(id) ON DELETE CASCADE;

ALTER TABLE ONLY bellringer.digest_items
    ADD CONSTRAINT digest_items_digest_id_fkey FOREIGN KEY (digest_id) REFERENCES bellringer.digests(id) ON DELETE CASCADE;

ALTER TABLE ONLY bellringer.emails
    ADD CONSTRAINT emails_digest_id_fkey FOREIGN KEY (digest_id) REFERENCES bellringer.digests(id) ON DELETE CASCADE;
