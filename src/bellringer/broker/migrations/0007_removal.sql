-- Removal: a queue emptied by hand, and messages past their retention.

-- Removes every message, and says how many went. What a transaction is just finishing is locked, and left to it. What
-- was published may be published again: a deduplication id would stand for a message that nobody will get.
CREATE FUNCTION bellringer.purge(in_queue integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    tail record;
    head record;
    claim record;
    unfinished int8multirange;
    counted record;
    now_at timestamptz;
    purged bigint := 0;
BEGIN
    -- Before the locks: who drains the inbox holds its rows when it asks for the order of the queue.
    DELETE FROM bellringer.inbox WHERE queue = in_queue;
    PERFORM bellringer.lock_order(in_queue);
    PERFORM bellringer.lock_claims(in_queue);
    now_at := clock_timestamp();
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
        -- That it ends as it begins tells it from the claims of consumers.
        VALUES (in_queue, tail.lane_after - head.lane_after, head.next_seq, tail.next_seq, tail.lane_after,
            now_at, now_at, now_at);
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

-- Looks at the `in_limit` oldest chunks from `in_from` on, and removes those past the retention of their queue, with
-- their history; but of a queue that does not expire, only what is finished. What is held stays in any case. Returns
-- where to go on, null at the end, and how many chunks went.
CREATE FUNCTION bellringer.collect(
    in_queue integer, in_from bigint, in_limit integer, OUT next_from bigint, OUT removed integer
)
LANGUAGE plpgsql AS $$
DECLARE
    settings record;
    tail record;
    head record;
    last_old record;
    expired record;
    now_at timestamptz;
BEGIN
    removed := 0;
    -- What a FIFO queue has not finished is tracked: every chunk without a row there can go.
    SELECT expires, expires OR fifo AS beyond_head,
        clock_timestamp() - make_interval(secs => retention_seconds) AS oldest_kept
    INTO settings
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
    now_at := clock_timestamp();
    SELECT * INTO head FROM bellringer.head_of(in_queue);
    SELECT * INTO tail FROM bellringer.tail_of(in_queue);
    SELECT first_seq + messages AS next_seq, lane_after INTO last_old
    FROM (
        SELECT first_seq, messages, lane_after, sent_at FROM bellringer.chunks
        WHERE queue = in_queue AND first_seq >= in_from ORDER BY first_seq LIMIT in_limit
    ) AS oldest
    WHERE sent_at < settings.oldest_kept AND (settings.beyond_head OR first_seq + messages <= head.next_seq)
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
                last_old.lane_after, now_at, now_at, now_at);
            INSERT INTO bellringer.claim_outcomes (queue, outcome, claim_seq, at, seqs)
            VALUES (in_queue, 'expired', head.next_seq, now_at,
                int8multirange(int8range(head.next_seq, last_old.next_seq)));
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
