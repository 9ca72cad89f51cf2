-- Messages that leave a claim unfinished: held on, returned, dead-lettered.

-- A frame with more in its header. The header is text, not jsonb: that has no zero character, which JSON may have.
CREATE FUNCTION bellringer.add_to_header(in_frame bytea, in_addition jsonb) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
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

-- The number of the dead letter queue, if there is one and so many attempts are enough; else null. One that was made
-- anew as a queue of the other kind, FIFO or not, is none.
CREATE FUNCTION bellringer.dead_letter_queue_of(in_queue integer, in_attempts integer) RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT letters.number
    FROM bellringer.queues AS queue
    JOIN bellringer.queues AS letters
        ON letters.environment_id = queue.environment_id AND letters.name = queue.dead_letter_queue
            AND letters.fifo = queue.fifo
    WHERE queue.number = in_queue AND in_attempts >= queue.max_receives
$$;

-- Hands a message to a dead letter queue, by way of the inbox: no lock of that queue is needed here.
CREATE FUNCTION bellringer.dead_letter(
    in_queue integer, in_seq bigint, in_attempts integer, in_claimed_at timestamptz, in_group text, in_letters integer
) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO bellringer.inbox (queue, group_key, payload)
    SELECT in_letters, in_group, bellringer.add_to_header(stored.frame, jsonb_build_object(
        'from', jsonb_build_object('queue', queue.name, 'queue_id', queue.id, 'id', in_seq, 'attempts', in_attempts)))
    FROM bellringer.frame_of(in_queue, in_seq) AS stored, bellringer.queues AS queue
    WHERE queue.number = in_queue;
    INSERT INTO bellringer.tracked_outcomes (queue, attempts, seq, claimed_at, at, outcome)
    VALUES (in_queue, in_attempts, in_seq, in_claimed_at, clock_timestamp(), 'dead_lettered');
    SELECT bellringer.tally(in_queue, 'dead_lettered', 1)
$$;

-- Messages that leave a claim: held on with a time of their own, or back in the queue.
CREATE FUNCTION bellringer.track(
    in_queue integer, in_seqs int8multirange, in_attempts integer, in_claimed_at timestamptz,
    in_seconds double precision, in_keep boolean
) RETURNS void
LANGUAGE plpgsql AS $$
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

-- Returns held messages, whose rows the caller has locked, to their queue, or moves them to its dead letter queue. An
-- attempt that nobody saw (`in_unseen`) never was.
CREATE FUNCTION bellringer.give_back(
    in_queue integer, in_seqs bigint[], in_seconds double precision, in_unseen boolean
) RETURNS void
LANGUAGE plpgsql AS $$
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

-- Gives back messages of one claim, or holds them on, for so many seconds; returns those that were held. When they
-- were never handed to a consumer (`in_unseen`), the attempt does not count.
CREATE FUNCTION bellringer.put_back(
    in_queue integer, in_claim bigint, in_seqs int8multirange, in_seconds double precision, in_keep boolean,
    in_unseen boolean
) RETURNS int8multirange
LANGUAGE plpgsql AS $$
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
        ) AS held;
        moving := moving + still_held;
    END IF;
    RETURN moving;
END $$;

-- The same for tracked messages. Returns the attempts that held one.
CREATE FUNCTION bellringer.put_back_tracked(
    in_queue integer, in_seqs bigint[], in_attempts integer[], in_seconds double precision, in_keep boolean,
    in_unseen boolean
) RETURNS TABLE (seq bigint, attempts integer)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    held_seqs bigint[];
    held_attempts integer[];
BEGIN
    PERFORM bellringer.lock_order_of_fifo(ARRAY[in_queue]);
    SELECT COALESCE(array_agg(message.seq), '{}'), COALESCE(array_agg(message.attempts), '{}')
    INTO held_seqs, held_attempts
    FROM (SELECT DISTINCT * FROM unnest(in_seqs, in_attempts) AS asked (seq, attempts) ORDER BY seq) AS wanted
    CROSS JOIN LATERAL (
        SELECT seq, attempts FROM bellringer.tracked
        -- As text, lest the planner walk all that is held, by tracked_due, to find the one.
        WHERE queue = in_queue AND seq = wanted.seq AND attempts = wanted.attempts AND state::text = 'held'
        FOR UPDATE
    ) AS message;
    IF in_keep THEN
        UPDATE bellringer.tracked SET due_at = clock_timestamp() + make_interval(secs => in_seconds)
        WHERE queue = in_queue AND seq = ANY (held_seqs);
    ELSE
        PERFORM bellringer.give_back(in_queue, held_seqs, in_seconds, in_unseen);
    END IF;
    RETURN QUERY SELECT * FROM unnest(held_seqs, held_attempts);
END $$;

-- The queues in which a hold or a delay was over within the last so many seconds. A look that is so bounded does not
-- walk over what ended long ago and a snapshot of somebody's keeps in the index. Indexes: claims_open, tracked_due.
CREATE FUNCTION bellringer.due_queues(in_seconds double precision) RETURNS TABLE (number integer, id uuid)
LANGUAGE sql STABLE AS $$
    SELECT queue.number, queue.id FROM bellringer.queues AS queue
    WHERE EXISTS (
        SELECT FROM bellringer.claims
        WHERE queue = queue.number AND ended_at IS NULL AND expires_at <= (SELECT clock_timestamp())
            AND expires_at > (SELECT clock_timestamp() - make_interval(secs => in_seconds))
    ) OR EXISTS (
        SELECT FROM bellringer.tracked
        WHERE queue = queue.number AND state IN ('delayed', 'held') AND due_at <= (SELECT clock_timestamp())
            AND due_at > (SELECT clock_timestamp() - make_interval(secs => in_seconds))
    )
$$;

-- The seqs between two that claims pass by, for each is tracked.
CREATE FUNCTION bellringer.passed_by(in_queue integer, in_from bigint, in_to bigint) RETURNS int8multirange
LANGUAGE sql STABLE AS $$
    SELECT COALESCE(range_agg(int8range(first_seq, first_seq + 1)), '{}') FROM bellringer.chunks
    WHERE queue = in_queue AND first_seq >= in_from AND first_seq < in_to AND tracked
$$;

-- Returns up to `in_limit` claims and as many tracked messages whose time was over within the last so many seconds, and
-- says how many. What a
-- transaction is just finishing is locked, and passed by.
CREATE FUNCTION bellringer.sweep(in_queue integer, in_limit integer, in_seconds double precision) RETURNS integer
LANGUAGE plpgsql AS $$
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
            AND expires_at > (SELECT clock_timestamp() - make_interval(secs => in_seconds))
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
            AND due_at > (SELECT clock_timestamp() - make_interval(secs => in_seconds))
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
