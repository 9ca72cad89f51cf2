-- Removal: a queue emptied by hand, and messages past their retention.

-- Removes every message, and says how many went. What a transaction is just finishing is locked, and left to it.
CREATE FUNCTION bellringer.purge(in_queue integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    tail record;
    head record;
    claim record;
    unfinished int8multirange;
    counted record;
    purged bigint := 0;
BEGIN
    PERFORM bellringer.lock_order(in_queue);
    PERFORM bellringer.lock_claims(in_queue);
    DELETE FROM bellringer.inbox WHERE queue = in_queue;
    FOR claim IN
        SELECT first_seq, next_seq FROM bellringer.claims
        WHERE queue = in_queue AND ended_at IS NULL FOR UPDATE SKIP LOCKED
    LOOP
        SELECT int8multirange(int8range(claim.first_seq, claim.next_seq)) - COALESCE(range_agg(seqs), '{}')
            - bellringer.passed_by(in_queue, claim.first_seq, claim.next_seq)
        INTO unfinished
        FROM bellringer.claim_outcomes WHERE queue = in_queue AND claim_seq = claim.first_seq;
        INSERT INTO bellringer.claim_outcomes (queue, outcome, claim_seq, at, seqs)
        VALUES (in_queue, 'purged', claim.first_seq, clock_timestamp(), unfinished);
        PERFORM bellringer.end_claim(in_queue, claim.first_seq);
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

-- Removes up to `in_limit` chunks past the retention of their queue, with their history, and says how many went. A
-- message that waits expires; one that is held stays until its hold is over, and everything after it.
CREATE FUNCTION bellringer.collect(in_queue integer, in_limit integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    oldest_kept timestamptz;
    old_until bigint;
    lane_until bigint;
    tail record;
    head record;
    expired record;
    removed integer;
BEGIN
    SELECT clock_timestamp() - make_interval(secs => retention_seconds) INTO oldest_kept
    FROM bellringer.queues WHERE number = in_queue;
    -- A look at the oldest chunk, before any lock is taken. Index: chunks_pkey.
    IF NOT (
        SELECT sent_at < oldest_kept FROM bellringer.chunks WHERE queue = in_queue ORDER BY first_seq LIMIT 1
    ) IS TRUE THEN
        RETURN 0;
    END IF;
    PERFORM bellringer.lock_order(in_queue);
    PERFORM bellringer.lock_claims(in_queue);
    SELECT max(first_seq + messages), max(lane_after) INTO old_until, lane_until
    FROM (
        SELECT first_seq, messages, lane_after, sent_at FROM bellringer.chunks
        WHERE queue = in_queue ORDER BY first_seq LIMIT in_limit
    ) AS oldest
    WHERE sent_at < oldest_kept AND first_seq + messages <= LEAST(
        (SELECT min(first_seq) FROM bellringer.claims WHERE queue = in_queue AND ended_at IS NULL),
        (SELECT min(seq) FROM bellringer.tracked WHERE queue = in_queue AND state = 'held'),
        9223372036854775807
    );
    IF old_until IS NULL THEN
        RETURN 0;
    END IF;
    SELECT * INTO head FROM bellringer.head_of(in_queue);
    SELECT * INTO tail FROM bellringer.tail_of(in_queue);
    IF head.next_seq < old_until THEN
        INSERT INTO bellringer.claims
            (queue, messages, first_seq, next_seq, lane_after, claimed_at, expires_at, ended_at)
        VALUES (in_queue, lane_until - head.lane_after, head.next_seq, old_until, lane_until, clock_timestamp(),
            clock_timestamp(), clock_timestamp());
        PERFORM bellringer.tally(in_queue, 'expired', lane_until - head.lane_after);
    END IF;
    WITH gone AS (
        DELETE FROM bellringer.tracked WHERE queue = in_queue AND seq < old_until RETURNING state, group_key
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
    DELETE FROM bellringer.chunks WHERE queue = in_queue AND first_seq < old_until;
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF old_until = tail.next_seq THEN
        UPDATE bellringer.queues SET floor_seq = tail.next_seq, floor_lane = tail.lane_after WHERE number = in_queue;
    END IF;
    -- The newest claim stays: it tells where the next one begins.
    DELETE FROM bellringer.claims WHERE queue = in_queue AND next_seq <= old_until AND first_seq < (
        SELECT max(first_seq) FROM bellringer.claims WHERE queue = in_queue
    );
    DELETE FROM bellringer.claim_outcomes WHERE queue = in_queue AND claim_seq < (
        SELECT min(first_seq) FROM bellringer.claims WHERE queue = in_queue
    );
    DELETE FROM bellringer.tracked_outcomes WHERE queue = in_queue AND seq < old_until;
    RETURN removed;
END $$;
