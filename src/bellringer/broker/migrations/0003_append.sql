-- Numbering: chunks appended to queues, one queue at a time.

CREATE FUNCTION bellringer.tally(in_queue integer, in_name text, in_change bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO bellringer.tally_entries (owner, name, change)
    SELECT id, in_name, in_change FROM bellringer.queues WHERE number = in_queue AND in_change <> 0
$$;

CREATE FUNCTION bellringer.size(in_seqs int8multirange) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT COALESCE(sum(upper(one) - lower(one)), 0)::bigint FROM unnest(in_seqs) AS one
$$;

-- The lock that orders what is appended to a queue, and what moves within the groups of a FIFO queue.
CREATE FUNCTION bellringer.lock_order(in_queue integer) RETURNS void
LANGUAGE sql AS $$ SELECT pg_advisory_xact_lock(1111837761, in_queue) $$;

-- The lock that orders the claims of a queue. Who needs both takes the other one first.
CREATE FUNCTION bellringer.lock_claims(in_queue integer) RETURNS void
LANGUAGE sql AS $$ SELECT pg_advisory_xact_lock(1111837763, in_queue) $$;

CREATE FUNCTION bellringer.lock_order_of_fifo(in_queues integer[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    fifo_queue integer;
BEGIN
    FOR fifo_queue IN SELECT number FROM bellringer.queues WHERE number = ANY (in_queues) AND fifo ORDER BY number LOOP
        PERFORM bellringer.lock_order(fifo_queue);
    END LOOP;
END $$;

-- One message: when it was sent, and its frame.
CREATE FUNCTION bellringer.frame_of(in_queue integer, in_seq bigint, OUT sent_at timestamptz, OUT frame bytea)
LANGUAGE sql STABLE AS $$
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

-- Where the next claim of a queue begins, and how much of its lane was claimed so far. No row: no such queue.
CREATE FUNCTION bellringer.head_of(in_queue integer, OUT next_seq bigint, OUT lane_after bigint)
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN last.next_seq > queue.floor_seq THEN last.next_seq ELSE queue.floor_seq END,
        CASE WHEN last.next_seq > queue.floor_seq THEN last.lane_after ELSE queue.floor_lane END
    FROM bellringer.queues AS queue
    LEFT JOIN LATERAL (
        SELECT next_seq, lane_after FROM bellringer.claims WHERE queue = in_queue ORDER BY first_seq DESC LIMIT 1
    ) AS last ON true
    WHERE queue.number = in_queue
$$;

-- The next seq of a queue, and how many of its messages were not tracked so far.
CREATE FUNCTION bellringer.tail_of(in_queue integer, OUT next_seq bigint, OUT lane_after bigint)
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN last.next_seq > queue.floor_seq THEN last.next_seq ELSE queue.floor_seq END,
        CASE WHEN last.next_seq > queue.floor_seq THEN last.lane_after ELSE queue.floor_lane END
    FROM bellringer.queues AS queue
    LEFT JOIN LATERAL (
        SELECT first_seq + messages AS next_seq, lane_after FROM bellringer.chunks
        WHERE queue = in_queue ORDER BY first_seq DESC LIMIT 1
    ) AS last ON true
    WHERE queue.number = in_queue
$$;

-- Makes the first message of a group claimable when no other of the group is in the way. Called under lock_order.
CREATE FUNCTION bellringer.settle_groups(in_queue integer, in_groups text[]) RETURNS void
LANGUAGE plpgsql AS $$
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
            -- OFFSET 0: one look per group, never a join with all groups that are busy.
            WHERE NOT EXISTS (
                SELECT FROM bellringer.tracked
                WHERE queue = in_queue AND group_key = touched.key AND state IN ('delayed', 'ready', 'held')
                OFFSET 0
            )
        ) AS head
        WHERE message.queue = in_queue AND message.seq = head.seq
        RETURNING message.state
    )
    SELECT count(*) FILTER (WHERE state = 'delayed') INTO delayed FROM promoted;
    PERFORM bellringer.tally(in_queue, 'pending', -delayed), bellringer.tally(in_queue, 'delayed', delayed)
    WHERE delayed > 0;
END $$;

-- Appends chunks, in the order given, sorted by queue: of queue i, counts[i] messages in payloads[i]. `in_ends` has the
-- ends of every chunk of more than one message, one after the other. A chunk with a delay, a group or a deduplication
-- id holds one message. Returns the seq of the first message of each chunk; for a duplicate that of the one before it.
CREATE FUNCTION bellringer.append(
    in_queues integer[], in_counts integer[], in_ends integer[], in_payloads bytea[],
    in_delays double precision[], in_groups text[], in_deduplications text[]
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
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
        IF in_groups[place] IS NOT NULL THEN
            -- What was committed before this one is begun comes before it.
            PERFORM bellringer.append_waiting(this_queue);
        END IF;
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

-- The seq that a deduplication id stands for in this window of five minutes, or null when it is taken for `in_seq` now.
CREATE FUNCTION bellringer.deduplicate(in_queue integer, in_id text, in_seq bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
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

