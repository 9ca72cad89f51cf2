-- How many executors the orchestrator asked for, round by round, and why.
CREATE TABLE bellringer.scaling_decisions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
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
CREATE INDEX scaling_decisions_at ON bellringer.scaling_decisions (at);
COMMENT ON COLUMN bellringer.scaling_decisions.runs_due IS 'Tasks and occurrences due in the look-ahead';
COMMENT ON COLUMN bellringer.scaling_decisions.slots IS 'Needed by when executors ordered now or next could be ready';
COMMENT ON COLUMN bellringer.scaling_decisions.waiting IS 'Runs that were due and had not started';
COMMENT ON COLUMN bellringer.scaling_decisions.executors_seen IS 'Executors that showed themselves lately';
COMMENT ON COLUMN bellringer.scaling_decisions.current IS 'Executors ordered before; null when the driver could not say';
COMMENT ON COLUMN bellringer.scaling_decisions.problem IS 'Why the order failed; the next round tries again';

CREATE FUNCTION bellringer.whole_seconds_until(moment timestamptz, now timestamptz) RETURNS integer
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN GREATEST(floor(extract(epoch FROM moment - now))::integer, -1);
COMMENT ON FUNCTION bellringer.whole_seconds_until IS 'For the look-ahead; -1 for everything before now';

CREATE FUNCTION bellringer.run_subject(task bellringer.tasks) RETURNS text
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN CASE WHEN task.once_at IS NULL THEN 'task ' || task.number ELSE left(
        CASE task.call ->> 'type'
            WHEN 'http' THEN 'http ' || split_part(task.call ->> 'url', '?', 1)
            WHEN 'message' THEN 'message ' || (task.call ->> 'queue')
            WHEN 'notification' THEN 'notification ' || (task.call ->> 'event_type')
            ELSE 'function ' || (task.call ->> 'name')
        END, 200)  -- LONGEST_SUBJECT in model.py
    END;
COMMENT ON FUNCTION bellringer.run_subject IS 'The subject under which the durations of its runs are kept';
