-- What people do to tasks and occurrences. Every change locks the row of the task first, as picker and executor do, and
-- looks at its occurrences in a statement after that: so it sees what was picked or started up to then, and nothing is
-- picked or planned until it is over.

-- Compared byte by byte, so that names with a prefix stand together.
ALTER TABLE bellringer.tasks ALTER COLUMN name TYPE text COLLATE "C";
ALTER TABLE bellringer.tasks ADD COLUMN delay_seconds double precision CHECK (delay_seconds IS NULL OR once_at IS NOT NULL);
COMMENT ON COLUMN bellringer.tasks.delay_seconds IS 'What was given for once_at, if not the time itself';
CREATE INDEX tasks_stopped ON bellringer.tasks (environment_id, state, name) WHERE state <> 'active';
CREATE INDEX incidents_kind ON bellringer.incidents (environment_id, kind, id);

-- Removes the occurrences of a task that are to come, to be picked anew; returns the first of their fire times. One
-- that is asked for by hand or tried again stays. What somebody cancelled before it started stays cancelled, unless
-- the schedule is another one. Called under the lock of the task. A message that was dispatched for a row that is gone
-- does nothing. Index: occurrences_pkey.
CREATE FUNCTION bellringer.unpick(in_task bigint, in_moment timestamptz, in_other_schedule boolean) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
    first_gone timestamptz;
BEGIN
    WITH gone AS (
        DELETE FROM bellringer.occurrences
        WHERE task = in_task AND fire_at > in_moment AND attempt = 1 AND NOT is_manual AND started_at IS NULL
            AND (stage <> 2 OR in_other_schedule AND outcome = 'cancelled')
        RETURNING fire_at, stage
    )
    SELECT min(fire_at) FILTER (WHERE stage <> 2) INTO first_gone FROM gone;
    RETURN first_gone;
END $$;

-- Lets what runs and waits of a task follow a new policy for overlaps. Called under the lock of the task.
CREATE FUNCTION bellringer.adopt_overlap(in_task bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    this bellringer.tasks;
BEGIN
    SELECT * INTO this FROM bellringer.tasks WHERE number = in_task;
    IF this.overlap = 'allow' THEN
        UPDATE bellringer.occurrences SET stage = 0, due_at = clock_timestamp()
        WHERE task = in_task AND fire_at = this.waiting_fire_at AND stage = 3;
        UPDATE bellringer.tasks SET running_fire_at = NULL, waiting_fire_at = NULL WHERE number = in_task;
    ELSIF this.running_fire_at IS NULL THEN
        UPDATE bellringer.tasks SET running_fire_at = (
            SELECT fire_at FROM bellringer.occurrences
            WHERE task = in_task AND stage = 2 AND started_at IS NOT NULL AND ended_at IS NULL
            ORDER BY fire_at DESC LIMIT 1
        )
        WHERE number = in_task;
    END IF;
END $$;

-- Records the fire times that passed and were not picked yet, for a task that will not run them any more.
CREATE FUNCTION bellringer.give_up_missed(in_task bellringer.tasks, in_moment timestamptz, in_why text) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO bellringer.incidents (environment_id, task, task_name, kind, fire_at, last_fire_at, detail)
    SELECT in_task.environment_id, in_task.number, in_task.name, 'skipped', in_task.next_fire_at, in_moment,
        'not picked before ' || in_why || ', nor was any fire time from it up to then'
    WHERE in_task.is_planned AND in_task.next_fire_at <= in_moment
$$;

-- Pauses or cancels a task, and returns it as it is then; no row when there is none. One that is paused, cancelled or
-- refused already is paused no more, and one that is cancelled stays as it is.
CREATE FUNCTION bellringer.stop_task(in_environment uuid, in_name text, in_state text) RETURNS SETOF bellringer.tasks
LANGUAGE plpgsql AS $$
DECLARE
    this bellringer.tasks;
    moment timestamptz;
    why text := CASE in_state WHEN 'paused' THEN 'the task was paused' ELSE 'the task was cancelled' END;
BEGIN
    SELECT * INTO this FROM bellringer.tasks WHERE environment_id = in_environment AND name = in_name
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    ELSIF this.state = 'active' OR in_state = 'cancelled' AND this.state <> 'cancelled' THEN
        moment := clock_timestamp();
        PERFORM bellringer.unpick(this.number, moment, false);
        PERFORM bellringer.give_up_missed(this, moment, why);
        -- What is due and could not start yet does not start any more. A pause lets those be that somebody asked for.
        UPDATE bellringer.occurrences SET stage = 2, ended_at = moment, outcome = 'cancelled', detail = why
        WHERE task = this.number AND stage <> 2 AND (in_state = 'cancelled' OR attempt = 1 AND NOT is_manual);
        UPDATE bellringer.tasks SET state = in_state, problem = NULL, is_planned = true, next_fire_at = NULL,
            waiting_fire_at = (
                SELECT fire_at FROM bellringer.occurrences
                WHERE task = this.number AND fire_at = this.waiting_fire_at AND stage = 3
            ),
            modified_at = moment
        WHERE number = this.number RETURNING * INTO this;
    END IF;
    RETURN NEXT this;
END $$;

-- Makes an occurrence that is due at once, at a moment that no other has. Returns 'done' and the moment, or the state
-- of a task that cannot run; no row when the task is gone.
CREATE FUNCTION bellringer.run_task(in_task bigint, OUT verdict text, OUT moment timestamptz) RETURNS SETOF record
LANGUAGE plpgsql AS $$
BEGIN
    SELECT state INTO verdict FROM bellringer.tasks WHERE number = in_task FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    ELSIF verdict NOT IN ('cancelled', 'refused') THEN
        verdict := 'done';
        moment := clock_timestamp();
        LOOP
            INSERT INTO bellringer.occurrences (task, fire_at, stage, due_at, picked_at, is_manual)
            VALUES (in_task, moment, 0, moment, moment, true)
            ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            moment := moment + interval '1 microsecond';
        END LOOP;
    END IF;
    RETURN NEXT;
END $$;

-- Tries an occurrence again that is over without success. Returns 'done'; the state of a task that cannot run; how the
-- occurrence ended, or 'open' while it has not; null when there is no such occurrence.
CREATE FUNCTION bellringer.retry_occurrence(in_task bigint, in_fire_at timestamptz) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    task_state text;
    this bellringer.occurrences;
    moment timestamptz;
BEGIN
    SELECT state INTO task_state FROM bellringer.tasks WHERE number = in_task FOR NO KEY UPDATE;
    SELECT * INTO this FROM bellringer.occurrences WHERE task = in_task AND fire_at = in_fire_at FOR UPDATE;
    IF task_state IS NULL OR this.task IS NULL THEN
        RETURN NULL;
    ELSIF this.ended_at IS NULL OR this.outcome = 'succeeded' THEN
        RETURN COALESCE(this.outcome, 'open');
    ELSIF task_state IN ('cancelled', 'refused') THEN
        RETURN task_state;
    END IF;
    moment := clock_timestamp();
    INSERT INTO bellringer.past_attempts (task, fire_at, attempt, due_at, dispatched_at, started_at, ended_at, outcome,
        detail, executor)
    VALUES (this.task, this.fire_at, this.attempt, this.due_at, this.dispatched_at, this.started_at, this.ended_at,
        this.outcome, this.detail, this.executor);
    UPDATE bellringer.occurrences SET stage = 0, attempt = this.attempt + 1, due_at = moment, picked_at = moment,
        dispatched_at = NULL, started_at = NULL, ended_at = NULL, outcome = NULL, detail = NULL, missed_cause = NULL,
        executor = NULL, cancel_requested = false
    WHERE task = in_task AND fire_at = in_fire_at;
    UPDATE bellringer.incidents SET resolved_at = moment
    WHERE task = in_task AND fire_at = in_fire_at AND resolved_at IS NULL
        AND (kind IN ('failed', 'timed_out', 'crashed') OR kind = 'skipped' AND fire_times = 1);
    RETURN 'done';
END $$;

-- Ends an occurrence that has not started, or asks the executor of one that runs to end it. Returns 'done', also when
-- it was cancelled before; how it ended otherwise; null when there is no such occurrence.
CREATE FUNCTION bellringer.cancel_occurrence(in_task bigint, in_fire_at timestamptz) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    this bellringer.occurrences;
BEGIN
    PERFORM FROM bellringer.tasks WHERE number = in_task FOR NO KEY UPDATE;
    SELECT * INTO this FROM bellringer.occurrences WHERE task = in_task AND fire_at = in_fire_at FOR UPDATE;
    IF this.task IS NULL THEN
        RETURN NULL;
    ELSIF this.ended_at IS NOT NULL THEN
        RETURN CASE this.outcome WHEN 'cancelled' THEN 'done' ELSE this.outcome END;
    ELSIF this.stage = 2 THEN
        UPDATE bellringer.occurrences SET cancel_requested = true WHERE task = in_task AND fire_at = in_fire_at;
    ELSE
        UPDATE bellringer.occurrences SET stage = 2, ended_at = clock_timestamp(), outcome = 'cancelled',
            detail = 'cancelled before it started', cancel_requested = true
        WHERE task = in_task AND fire_at = in_fire_at;
        UPDATE bellringer.tasks SET waiting_fire_at = NULL WHERE number = in_task AND waiting_fire_at = in_fire_at;
    END IF;
    RETURN 'done';
END $$;
