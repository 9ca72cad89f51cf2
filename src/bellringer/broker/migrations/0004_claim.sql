-- Claims, and what becomes of them.

-- Up to `in_limit` messages out of tracked. Of a FIFO queue whole runs of a group: while one of them is held, no later
-- one is ready. Called under lock_claims, or for a FIFO queue lock_order.
CREATE FUNCTION bellringer.claim_tracked(in_queue integer, in_limit integer, in_seconds double precision)
RETURNS TABLE (
    claim_seq bigint, attempts integer, first_seq bigint, messages integer, sent_at timestamptz,
    first_claimed_at timestamptz, ends_before integer, ends integer[], payload bytea
)
LANGUAGE sql AS $$
    WITH heads AS MATERIALIZED (
        SELECT ctid AS tid, seq, group_key FROM bellringer.tracked
        WHERE queue = in_queue AND state = 'ready'
        ORDER BY seq
        LIMIT in_limit
        FOR UPDATE SKIP LOCKED
    ), runs AS (
        SELECT tid, seq, 0 AS place FROM heads
        UNION ALL
        SELECT follower.tid, follower.seq, follower.place
        FROM heads
        CROSS JOIN LATERAL (
            SELECT tid, seq, row_number() OVER (ORDER BY seq) AS place, max(due_at) OVER (ORDER BY seq) AS latest_due_at
            FROM (
                SELECT ctid AS tid, seq, due_at FROM bellringer.tracked
                WHERE queue = in_queue AND group_key = heads.group_key AND state = 'queued'
                ORDER BY seq
                LIMIT in_limit / (SELECT count(*) FROM heads)
            ) AS waiting
        ) AS follower
        WHERE heads.group_key IS NOT NULL
            -- One moment for all: else a message could be late at its own look and in time at that of the next.
            AND (follower.latest_due_at IS NULL OR follower.latest_due_at <= (SELECT clock_timestamp()))
    ), picked AS (
        SELECT tid FROM runs ORDER BY place, seq LIMIT in_limit
    ), claimed AS (
        UPDATE bellringer.tracked AS message
        SET state = 'held', attempts = message.attempts + 1, claimed_at = clock_timestamp(),
            first_claimed_at = COALESCE(message.first_claimed_at, clock_timestamp()),
            due_at = clock_timestamp() + make_interval(secs => in_seconds)
        -- By their places: by their keys, the planner might read all that is tracked of the queue.
        WHERE message.ctid = ANY (ARRAY(SELECT tid FROM picked))
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

-- The frames of a run of messages of one chunk, where each ends in the chunk, and where the run begins in it.
CREATE FUNCTION bellringer.run_of(
    in_queue integer, in_first_seq bigint, in_messages integer,
    OUT ends_before integer, OUT ends integer[], OUT payload bytea
)
LANGUAGE sql STABLE AS $$
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

-- Records that messages left a claim otherwise than finished.
CREATE FUNCTION bellringer.leave_claim(
    in_queue integer, in_claim bigint, in_outcome bellringer.outcome, in_seqs int8multirange
) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO bellringer.claim_outcomes (queue, outcome, claim_seq, at, seqs)
    VALUES (in_queue, in_outcome, in_claim, clock_timestamp(), in_seqs);
    SELECT bellringer.tally(in_queue, 'left', bellringer.size(in_seqs))
$$;

-- Claims up to `in_limit` messages, those that came back first. Each row is a run of messages of one chunk: their
-- payload, where each ends in the chunk, and where the run begins in it. `claim_seq` is 0 for tracked ones.
--
-- A row is sent before its transaction ends, so a client that does not read could keep the lock of the claims: what
-- does not fit into 64 KiB, which any socket takes at once, comes as null, to be read afterwards by `run_of`.
CREATE FUNCTION bellringer.claim(in_queue integer, in_limit integer, in_seconds double precision)
RETURNS TABLE (
    claim_seq bigint, attempts integer, first_seq bigint, messages integer, sent_at timestamptz,
    first_claimed_at timestamptz, ends_before integer, ends integer[], payload bytea
)
LANGUAGE plpgsql AS $$
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

-- Finishes messages of one claim. `finished`: now, by this call; `repeated`: those that were finished before it.
CREATE FUNCTION bellringer.finish(
    in_queue integer, in_claim bigint, in_seqs int8multirange,
    OUT finished int8multirange, OUT repeated int8multirange
)
LANGUAGE plpgsql AS $$
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

-- Finishes tracked messages. Returns those that are finished, and whether it was by this call.
CREATE FUNCTION bellringer.finish_tracked(in_queues integer[], in_seqs bigint[], in_attempts integer[])
RETURNS TABLE (queue integer, seq bigint, attempts integer, was_held boolean)
LANGUAGE plpgsql AS $$
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
            -- As text, lest the planner walk all that is held, by tracked_due, to find the one.
            SELECT queue, seq FROM bellringer.tracked
            WHERE queue = wanted.queue AND seq = wanted.seq AND attempts = wanted.attempts AND state::text = 'held'
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
