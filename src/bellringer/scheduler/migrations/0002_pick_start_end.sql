-- The transitions of occurrences. Whoever picks, starts or ends waits for no task that somebody else has locked: SQL of
-- a client may change a task in a transaction that goes on for long, and nothing else may stand still for that. A picker
-- takes the others; of a start or an end that cannot be now, its executor is told so, and asks again.

-- Records what a picker planned for tasks that it has locked: fire times that run, fire times that are skipped, and by
-- task (numbers, next_fire_ats, problems) what comes next, or why nothing does.
CREATE FUNCTION bellringer.pick(
    numbers bigint[], next_fire_ats timestamptz[], problems text[],
    run_tasks bigint[], run_fire_ats timestamptz[], skip_tasks bigint[], skip_fire_ats timestamptz[]
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE bellringer.tasks AS task
    SET next_fire_at = planned.next_fire_at, is_planned = true, problem = planned.problem,
        state = CASE WHEN planned.problem IS NULL THEN task.state ELSE 'refused' END
    FROM unnest(numbers, next_fire_ats, problems) AS planned (number, next_fire_at, problem)
    WHERE task.number = planned.number;

    WITH picked AS (
        INSERT INTO bellringer.occurrences (task, fire_at, stage, due_at, picked_at)
        SELECT run.task, run.fire_at, 0, run.fire_at, clock_timestamp()
        FROM unnest(run_tasks, run_fire_ats) AS run (task, fire_at)
        ON CONFLICT DO NOTHING
        RETURNING task
    ), counted AS (
        SELECT task.environment_id, count(*) AS occurrences
        FROM picked JOIN bellringer.tasks AS task ON task.number = picked.task
        GROUP BY task.environment_id
    )
    INSERT INTO bellringer.tally_entries (owner, name, change)
    SELECT environment_id, 'tasks.picked', occurrences FROM counted;

    IF cardinality(skip_tasks) > 0 THEN
        WITH skipped AS (
            INSERT INTO bellringer.occurrences
                (task, fire_at, stage, due_at, picked_at, ended_at, outcome, detail)
            SELECT skip.task, skip.fire_at, 2, skip.fire_at, clock_timestamp(), clock_timestamp(), 'skipped',
                'missed while no picker could take it, and not made up for'
            FROM unnest(skip_tasks, skip_fire_ats) AS skip (task, fire_at)
            ON CONFLICT DO NOTHING
            RETURNING task, fire_at
        ), reported AS (
            INSERT INTO bellringer.incidents
                (environment_id, task, task_name, kind, fire_at, last_fire_at, fire_times, cause, detail)
            SELECT task.environment_id, task.number, task.name, 'skipped', min(skipped.fire_at), max(skipped.fire_at),
                count(*), 'misfire', 'missed while no picker could take it, and not made up for'
            FROM skipped JOIN bellringer.tasks AS task ON task.number = skipped.task
            GROUP BY task.environment_id, task.number, task.name
            RETURNING environment_id, fire_times
        )
        INSERT INTO bellringer.tally_entries (owner, name, change)
        SELECT environment_id, 'tasks.skipped', sum(fire_times) FROM reported GROUP BY environment_id;
    END IF;

    INSERT INTO bellringer.incidents (environment_id, task, task_name, kind, detail)
    SELECT task.environment_id, task.number, task.name, 'refused', task.problem
    FROM unnest(numbers, problems) AS planned (number, problem)
    JOIN bellringer.tasks AS task ON task.number = planned.number
    WHERE planned.problem IS NOT NULL;
END $$;

-- Ends an occurrence that did not start.
CREATE FUNCTION bellringer.skip_occurrence(in_task bellringer.tasks, in_fire_at timestamptz, reason text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE bellringer.occurrences SET stage = 2, ended_at = clock_timestamp(), outcome = 'skipped', detail = reason
    WHERE task = in_task.number AND fire_at = in_fire_at;
    INSERT INTO bellringer.incidents
        (environment_id, task, task_name, kind, fire_at, last_fire_at, cause, detail)
    VALUES (in_task.environment_id, in_task.number, in_task.name, 'skipped', in_fire_at, in_fire_at, 'overlap', reason);
    INSERT INTO bellringer.tally_entries (owner, name, change) VALUES (in_task.environment_id, 'tasks.skipped', 1);
END $$;

-- Puts an occurrence that is due while another one of its task runs where the task says: it waits, or is skipped. The
-- task is locked.
CREATE FUNCTION bellringer.hold_up(in_task bellringer.tasks, in_fire_at timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    waiting timestamptz;
BEGIN
    IF in_task.overlap = 'skip' THEN
        PERFORM bellringer.skip_occurrence(in_task, in_fire_at, 'another occurrence was still running');
        RETURN;
    END IF;
    SELECT fire_at INTO waiting FROM bellringer.occurrences
    WHERE task = in_task.number AND fire_at = in_task.waiting_fire_at AND stage = 3 AND ended_at IS NULL;
    -- An attempt after a failure may come after a later occurrence, which has replaced it.
    IF in_task.overlap = 'replace' AND in_fire_at < GREATEST(in_task.running_fire_at, waiting) THEN
        PERFORM bellringer.skip_occurrence(in_task, in_fire_at, 'a later occurrence took its place');
        RETURN;
    ELSIF in_task.overlap = 'queue' AND waiting <> in_fire_at THEN
        PERFORM bellringer.skip_occurrence(in_task, in_fire_at, 'another occurrence was waiting already');
        RETURN;
    ELSIF in_task.overlap = 'replace' THEN
        IF waiting <> in_fire_at THEN
            PERFORM bellringer.skip_occurrence(in_task, waiting, 'a later occurrence took its place');
        END IF;
        UPDATE bellringer.occurrences SET cancel_requested = true
        WHERE task = in_task.number AND fire_at = in_task.running_fire_at;
    END IF;
    UPDATE bellringer.occurrences SET stage = 3 WHERE task = in_task.number AND fire_at = in_fire_at;
    UPDATE bellringer.tasks SET waiting_fire_at = in_fire_at WHERE number = in_task.number;
END $$;

-- Locks those of the tasks of which one occurrence at a time may run; returns the numbers of those that somebody else
-- has locked.
CREATE FUNCTION bellringer.lock_tasks(in_tasks bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    free_tasks bigint[] := ARRAY(
        SELECT number FROM bellringer.tasks
        WHERE number = ANY (in_tasks) AND (overlap <> 'allow' OR running_fire_at IS NOT NULL)
        FOR NO KEY UPDATE SKIP LOCKED
    );
BEGIN
    RETURN ARRAY(
        SELECT number FROM bellringer.tasks
        WHERE number = ANY (in_tasks) AND (overlap <> 'allow' OR running_fire_at IS NOT NULL)
        EXCEPT SELECT unnest(free_tasks)
    );
END $$;

-- Whether the next attempt follows by itself: not when somebody asked to end this one. A run that takes its executor
-- down with it does so three times at most.
CREATE FUNCTION bellringer.is_tried_again(
    state text, max_retries integer, rerun_after_crash boolean, cancel_requested boolean, outcome text, attempt integer
) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT state <> 'cancelled' AND NOT cancel_requested AND CASE
        WHEN outcome IN ('failed', 'timed_out') THEN attempt <= max_retries
        WHEN outcome = 'crashed' THEN rerun_after_crash AND attempt < GREATEST(3, max_retries + 1)
        ELSE false
    END
$$;

-- Ends attempts that run, each unless another end of it was recorded before. Says of each that it is recorded now, or
-- cannot be recorded now because somebody else has its task locked; nothing of those whose end came too late. Tries
-- again, as another attempt, what its task says is to be tried again.
CREATE FUNCTION bellringer.end_attempts(
    in_tasks bigint[], in_fire_ats timestamptz[], in_attempts integer[], in_outcomes text[], in_details text[]
) RETURNS TABLE (place bigint, is_recorded boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    ended record;
    locked_tasks bigint[] := bellringer.lock_tasks(in_tasks);
BEGIN
    RETURN QUERY SELECT one.place, false FROM unnest(in_tasks) WITH ORDINALITY AS one (task, place)
    WHERE task = ANY (locked_tasks);

    -- What is not tried again.
    RETURN QUERY
    WITH given AS (
        SELECT *
        FROM unnest(in_tasks, in_fire_ats, in_attempts, in_outcomes, in_details) WITH ORDINALITY
            AS one (task, fire_at, attempt, outcome, detail, place)
    ), ended AS (
        UPDATE bellringer.occurrences AS occurrence
        SET ended_at = clock_timestamp(), outcome = given.outcome, detail = given.detail
        FROM given JOIN bellringer.tasks AS task ON task.number = given.task
        WHERE occurrence.task = given.task AND occurrence.fire_at = given.fire_at
            -- So put, it is found by its key: few run at any time, and the planner would go and look for those.
            AND given.attempt =
                CASE WHEN occurrence.stage = 2 AND occurrence.ended_at IS NULL THEN occurrence.attempt END
            AND given.task <> ALL (locked_tasks)
            AND NOT bellringer.is_tried_again(task.state, task.max_retries, task.rerun_after_crash,
                occurrence.cancel_requested, given.outcome, given.attempt)
        RETURNING given.place, task.environment_id, task.number, task.name, occurrence.fire_at, occurrence.attempt,
            occurrence.outcome, occurrence.detail,
            EXTRACT(epoch FROM occurrence.ended_at - occurrence.started_at) * 1000 AS milliseconds
    ), reported AS (
        INSERT INTO bellringer.incidents (environment_id, task, task_name, kind, fire_at, attempt, detail)
        SELECT environment_id, number, name, outcome, fire_at, attempt, detail FROM ended
        WHERE outcome IN ('failed', 'timed_out', 'crashed')
    ), counted AS (
        INSERT INTO bellringer.tally_entries (owner, name, change)
        SELECT environment_id, counts.name, counts.change
        FROM (
            SELECT environment_id, count(*) AS ended, sum(milliseconds)::bigint AS milliseconds,
                count(*) FILTER (WHERE outcome IN ('failed', 'timed_out', 'crashed')) AS failed
            FROM ended GROUP BY environment_id
        ) AS summed, LATERAL (VALUES ('tasks.ended', ended), ('tasks.run_ms', milliseconds), ('tasks.failed', failed))
            AS counts (name, change)
        WHERE counts.change <> 0
    )
    SELECT place, true FROM ended;

    -- What is: few enough for one at a time.
    FOR ended IN
        SELECT occurrence.*, given.outcome AS new_outcome, given.detail AS new_detail, given.place,
            task.environment_id, task.name,
            LEAST(task.retry_cap_seconds, task.retry_first_seconds * 2.0 ^ LEAST(given.attempt - 1, 64)) AS ceiling
        FROM unnest(in_tasks, in_fire_ats, in_attempts, in_outcomes, in_details) WITH ORDINALITY
            AS given (task, fire_at, attempt, outcome, detail, place)
        JOIN bellringer.tasks AS task ON task.number = given.task
        JOIN bellringer.occurrences AS occurrence
            ON occurrence.task = given.task AND occurrence.fire_at = given.fire_at AND occurrence.attempt = given.attempt
        WHERE given.outcome IN ('failed', 'timed_out', 'crashed') AND occurrence.stage = 2
            AND occurrence.ended_at IS NULL AND given.task <> ALL (locked_tasks)
            AND bellringer.is_tried_again(task.state, task.max_retries, task.rerun_after_crash,
                occurrence.cancel_requested, given.outcome, given.attempt)
        ORDER BY given.task, given.fire_at
        FOR NO KEY UPDATE OF occurrence
    LOOP
        INSERT INTO bellringer.past_attempts
            (task, fire_at, attempt, due_at, dispatched_at, started_at, ended_at, outcome, detail, executor)
        VALUES (ended.task, ended.fire_at, ended.attempt, ended.due_at, ended.dispatched_at, ended.started_at,
            clock_timestamp(), ended.new_outcome, ended.new_detail, ended.executor)
        ON CONFLICT DO NOTHING;
        CONTINUE WHEN NOT FOUND;  -- it was given twice
        -- A failure is for the policy to see to, a crash is news all the same.
        INSERT INTO bellringer.incidents
            (environment_id, task, task_name, kind, fire_at, attempt, detail, resolved_at)
        SELECT ended.environment_id, ended.task, ended.name, 'crashed', ended.fire_at, ended.attempt, ended.new_detail,
            clock_timestamp()
        WHERE ended.new_outcome = 'crashed';
        UPDATE bellringer.occurrences
        SET stage = 0, attempt = ended.attempt + 1, dispatched_at = NULL, started_at = NULL, executor = NULL,
            missed_cause = NULL, due_at = clock_timestamp() + make_interval(secs => CASE
                WHEN ended.new_outcome = 'crashed' THEN 0 ELSE ended.ceiling * (0.5 + random() / 2) END)
        WHERE task = ended.task AND fire_at = ended.fire_at;
        place := ended.place;
        is_recorded := true;
        RETURN NEXT;
    END LOOP;

    -- What waited for one of these to end is due now.
    WITH freed AS (
        UPDATE bellringer.tasks AS task SET running_fire_at = NULL, waiting_fire_at = NULL
        FROM (
            SELECT number, running_fire_at, waiting_fire_at FROM bellringer.tasks
            WHERE number = ANY (in_tasks) AND number <> ALL (locked_tasks) AND running_fire_at IS NOT NULL
        ) AS before
        JOIN bellringer.occurrences AS occurrence
            ON occurrence.task = before.number AND occurrence.fire_at = before.running_fire_at
        WHERE task.number = before.number AND (occurrence.ended_at IS NOT NULL OR occurrence.stage <> 2)
        RETURNING before.number, before.waiting_fire_at
    )
    UPDATE bellringer.occurrences AS occurrence SET stage = 0, due_at = clock_timestamp()
    FROM freed
    WHERE occurrence.task = freed.number AND occurrence.fire_at = freed.waiting_fire_at AND occurrence.stage = 3
        AND occurrence.ended_at IS NULL;
END $$;

-- What took most of the time between the moment when an occurrence was due and now, when it starts.
CREATE FUNCTION bellringer.miss_cause(
    due_at timestamptz, picked_at timestamptz, dispatched_at timestamptz,
    held_seconds double precision, ready_seconds double precision
) RETURNS text
LANGUAGE sql AS $$
    SELECT cause
    FROM (
        SELECT due_at, GREATEST(due_at, picked_at, dispatched_at) AS dispatched_at,
            GREATEST(due_at, clock_timestamp() - make_interval(secs => held_seconds)) AS held_at,
            GREATEST(due_at, clock_timestamp() - make_interval(secs => ready_seconds)) AS ready_at
    ) AS step,
    LATERAL (VALUES
        ('picker late', step.dispatched_at - step.due_at),
        ('queue full', step.held_at - step.dispatched_at),
        ('executor busy', step.ready_at - step.held_at),
        ('database slow', clock_timestamp() - step.ready_at)
    ) AS stage (cause, taken)
    ORDER BY taken DESC LIMIT 1
$$;

-- Starts what is due, of each task the earlier first. Of each says what is to be done: `run` it; `wait` for wait_seconds
-- and ask again, because it is not due or somebody else has it locked; it is `here`, started by this executor before; it
-- is `elsewhere`, run by another executor that lives. Of nothing else is anything to be done (any more).
-- held_seconds: how long ago the executor got it; ready_seconds: how long ago it would have run it.
CREATE FUNCTION bellringer.start_occurrences(
    in_executor uuid, in_tasks bigint[], in_fire_ats timestamptz[], in_attempts integer[], in_dispatched_ats timestamptz[],
    held_seconds double precision[], ready_seconds double precision[], promise_seconds double precision,
    lost_seconds double precision
) RETURNS TABLE (
    place bigint, verdict text, wait_seconds double precision, environment_id uuid, name text, call text, payload text,
    time_limit_seconds double precision, is_recurring boolean
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    locked_wait_seconds constant double precision := 0.1;
    given record;
    task bellringer.tasks;
    locked_tasks bigint[] := bellringer.lock_tasks(in_tasks);
    seen bigint[] := '{}';
    may_run bigint[] := '{}';
    alone_tasks bigint[] := '{}';
    alone_fire_ats timestamptz[] := '{}';
    held_up_tasks bigint[] := '{}';
    held_up_fire_ats timestamptz[] := '{}';
    alone_task bigint;
    alone_fire_at timestamptz;
    here bigint[] := '{}';
    reported_before bigint[] := '{}';
    crashed_tasks bigint[] := '{}';
    crashed_fire_ats timestamptz[] := '{}';
    crashed_attempts integer[] := '{}';
BEGIN
    FOR given IN
        SELECT one.place, one.task, one.fire_at, occurrence.stage, occurrence.due_at, occurrence.attempt,
            occurrence.ended_at, occurrence.missed_cause, occurrence.executor, definition.overlap,
            occurrence.dispatched_at IS NOT DISTINCT FROM one.dispatched_at
                AND occurrence.attempt = one.attempt AS is_current,
            executor.seen_at > clock_timestamp() - make_interval(secs => lost_seconds) AS is_alive,
            COALESCE(running.fire_at <> one.fire_at AND running.stage = 2 AND running.started_at IS NOT NULL
                AND running.ended_at IS NULL, false) AS is_held_up
        FROM unnest(in_tasks, in_fire_ats, in_attempts, in_dispatched_ats) WITH ORDINALITY
            AS one (task, fire_at, attempt, dispatched_at, place)
        JOIN bellringer.occurrences AS occurrence ON occurrence.task = one.task AND occurrence.fire_at = one.fire_at
        JOIN bellringer.tasks AS definition ON definition.number = one.task
        LEFT JOIN bellringer.occurrences AS running
            ON running.task = one.task AND running.fire_at = definition.running_fire_at
        LEFT JOIN bellringer.executors AS executor ON executor.id = occurrence.executor
        ORDER BY one.task, one.fire_at
        FOR NO KEY UPDATE OF occurrence SKIP LOCKED
    LOOP
        place := given.place;
        seen := seen || given.place;
        IF NOT given.is_current OR given.ended_at IS NOT NULL THEN
            CONTINUE;
        ELSIF given.stage = 1 AND given.due_at > clock_timestamp() THEN
            verdict := 'wait';
            wait_seconds := EXTRACT(epoch FROM given.due_at - clock_timestamp());
            RETURN NEXT;
        ELSIF given.stage IN (1, 2) AND given.task = ANY (locked_tasks) THEN
            verdict := 'wait';
            wait_seconds := locked_wait_seconds;
            RETURN NEXT;
        ELSIF given.stage = 1 THEN
            IF given.overlap <> 'allow' THEN
                IF given.is_held_up OR given.task = alone_task AND given.fire_at <> alone_fire_at THEN
                    held_up_tasks := held_up_tasks || given.task;
                    held_up_fire_ats := held_up_fire_ats || given.fire_at;
                    CONTINUE;
                END IF;
                alone_task := given.task;
                alone_fire_at := given.fire_at;
                alone_tasks := alone_tasks || given.task;
                alone_fire_ats := alone_fire_ats || given.fire_at;
            END IF;
            may_run := may_run || given.place;
            IF given.missed_cause IS NOT NULL THEN
                reported_before := reported_before || given.place;
            END IF;
        ELSIF given.stage = 2 AND given.executor = in_executor THEN
            here := here || given.place;
        ELSIF given.stage = 2 AND given.is_alive THEN
            verdict := 'elsewhere';
            wait_seconds := NULL;
            RETURN NEXT;
        ELSIF given.stage = 2 THEN
            crashed_tasks := crashed_tasks || given.task;
            crashed_fire_ats := crashed_fire_ats || given.fire_at;
            crashed_attempts := crashed_attempts || given.attempt;
            -- By then it is over, or to be tried again.
            verdict := 'wait';
            wait_seconds := 0;
            RETURN NEXT;
        END IF;
    END LOOP;

    IF cardinality(alone_tasks) > 0 THEN
        UPDATE bellringer.tasks AS task SET running_fire_at = alone.fire_at,
            waiting_fire_at = CASE WHEN waiting_fire_at = alone.fire_at THEN NULL ELSE waiting_fire_at END
        FROM unnest(alone_tasks, alone_fire_ats) AS alone (number, fire_at)
        WHERE task.number = alone.number;
    END IF;

    RETURN QUERY
    SELECT one.place, 'wait', locked_wait_seconds, NULL::uuid, NULL, NULL, NULL, NULL::double precision, NULL::boolean
    FROM unnest(in_tasks, in_fire_ats) WITH ORDINALITY AS one (task, fire_at, place)
    JOIN bellringer.occurrences AS occurrence ON occurrence.task = one.task AND occurrence.fire_at = one.fire_at
    JOIN bellringer.tasks AS task ON task.number = one.task
    WHERE cardinality(seen) < cardinality(in_tasks) AND one.place <> ALL (seen);

    RETURN QUERY
    SELECT one.place, 'here', NULL::double precision, task.environment_id, task.name, task.call::text, task.payload,
        task.time_limit_seconds, task.once_at IS NULL
    FROM unnest(in_tasks) WITH ORDINALITY AS one (task, place) JOIN bellringer.tasks AS task ON task.number = one.task
    WHERE one.place = ANY (here);

    RETURN QUERY
    WITH started AS (
        UPDATE bellringer.occurrences AS occurrence
        SET stage = 2, started_at = COALESCE(occurrence.started_at, clock_timestamp()), executor = in_executor,
            missed_cause = CASE
                WHEN occurrence.missed_cause IS NULL
                    AND clock_timestamp() > occurrence.due_at + make_interval(secs => promise_seconds)
                THEN bellringer.miss_cause(occurrence.due_at, occurrence.picked_at, occurrence.dispatched_at,
                    one.held_seconds, one.ready_seconds)
                ELSE occurrence.missed_cause
            END
        FROM unnest(in_tasks, in_fire_ats, held_seconds, ready_seconds) WITH ORDINALITY
            AS one (task, fire_at, held_seconds, ready_seconds, place)
        JOIN bellringer.tasks AS task ON task.number = one.task
        WHERE one.place = ANY (may_run) AND occurrence.task = one.task AND occurrence.fire_at = one.fire_at
        RETURNING one.place, task.environment_id, task.number, task.name, task.call, task.payload,
            task.time_limit_seconds, task.once_at IS NULL AS is_recurring, occurrence.fire_at, occurrence.attempt,
            occurrence.missed_cause AS cause,
            occurrence.missed_cause IS NOT NULL AND one.place <> ALL (reported_before) AS is_missed_now,
            EXTRACT(epoch FROM occurrence.started_at - occurrence.due_at) AS lag_seconds
    ), reported AS (
        INSERT INTO bellringer.incidents (environment_id, task, task_name, kind, fire_at, attempt, cause, detail)
        SELECT environment_id, number, name, 'missed', fire_at, attempt, cause,
            format('started %s s after it was due', round(lag_seconds::numeric, 1))
        FROM started WHERE is_missed_now
    ), counted AS (
        INSERT INTO bellringer.tally_entries (owner, name, change)
        SELECT environment_id, name, sum(change)
        FROM (
            SELECT environment_id, 'tasks.started' AS name, 1 AS change FROM started
            UNION ALL
            SELECT environment_id, 'tasks.wait_ms', (1000 * GREATEST(lag_seconds, 0))::bigint FROM started
            UNION ALL
            SELECT environment_id, 'tasks.missed', 1 FROM started WHERE is_missed_now
            UNION ALL
            -- Bounds as WAIT_BOUNDS_SECONDS in model.py.
            SELECT environment_id,
                'tasks.wait_' || CASE
                    WHEN lag_seconds <= 0.1 THEN 0 WHEN lag_seconds <= 0.5 THEN 1 WHEN lag_seconds <= 1 THEN 2
                    WHEN lag_seconds <= 5 THEN 3 WHEN lag_seconds <= 10 THEN 4 WHEN lag_seconds <= 30 THEN 5 ELSE 6 END,
                1
            FROM started
        ) AS changes
        GROUP BY environment_id, name
        HAVING sum(change) <> 0
    )
    SELECT place, 'run', 0::double precision, environment_id, name, call::text, payload, time_limit_seconds, is_recurring
    FROM started;

    FOR held_up IN 1 .. cardinality(held_up_tasks) LOOP
        SELECT * INTO task FROM bellringer.tasks WHERE number = held_up_tasks[held_up];
        PERFORM bellringer.hold_up(task, held_up_fire_ats[held_up]);
    END LOOP;

    -- Last, so that what was held up by one of these and waits for it is freed by its end.
    IF cardinality(crashed_tasks) > 0 THEN
        PERFORM bellringer.end_attempts(crashed_tasks, crashed_fire_ats, crashed_attempts,
            array_fill('crashed'::text, ARRAY[cardinality(crashed_tasks)]),
            array_fill('its executor died or lost touch while it ran'::text, ARRAY[cardinality(crashed_tasks)]));
    END IF;
END $$;
