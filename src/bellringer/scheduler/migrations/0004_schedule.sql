-- Scheduling inside any client's transaction: the task is there if and only if the transaction commits. What is wrong is
-- refused at once as far as SQL can tell; a picker refuses the rest, such as a cron expression that names no time.

-- Raises an error that names the parameter.
CREATE FUNCTION bellringer.refuse_parameter(in_parameter text, in_problem text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%: %', in_parameter, in_problem USING ERRCODE = 'invalid_parameter_value';
END $$;

-- Checks the members of a JSON object: each must be in `in_types`, which says its JSON type, or `integer`; `string?` may
-- be null too.
CREATE FUNCTION bellringer.check_members(in_parameter text, in_object jsonb, in_types jsonb, in_required text[])
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    member record;
    wanted text;
BEGIN
    IF in_object IS NULL OR jsonb_typeof(in_object) <> 'object' THEN
        PERFORM bellringer.refuse_parameter(in_parameter, 'it must be a JSON object');
    END IF;
    FOR member IN SELECT key, value, jsonb_typeof(value) AS type FROM jsonb_each(in_object) LOOP
        wanted := in_types ->> member.key;
        IF wanted IS NULL THEN
            PERFORM bellringer.refuse_parameter(in_parameter || '.' || member.key, 'there is no such member');
        ELSIF wanted = 'integer' AND member.type = 'number' AND member.value::numeric % 1 = 0 THEN
            CONTINUE;
        ELSIF member.type <> rtrim(wanted, '?') AND NOT (member.type = 'null' AND wanted LIKE '%?') THEN
            PERFORM bellringer.refuse_parameter(in_parameter || '.' || member.key,
                'it must be of the type ' || rtrim(wanted, '?') || ', not ' || member.type);
        END IF;
    END LOOP;
    FOR wanted IN SELECT name FROM unnest(in_required) AS name WHERE NOT in_object ? name LOOP
        PERFORM bellringer.refuse_parameter(in_parameter || '.' || wanted, 'it is missing');
    END LOOP;
END $$;

-- Checks the number at a place, if there is one.
CREATE FUNCTION bellringer.check_number(
    in_place text, in_number double precision, in_lowest double precision, in_highest double precision
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT in_number BETWEEN in_lowest AND in_highest THEN
        PERFORM bellringer.refuse_parameter(in_place, format('it must be from %s to %s', in_lowest, in_highest));
    END IF;
END $$;

-- The call with what it leaves out, when its members are of the right types.
CREATE FUNCTION bellringer.complete_call(in_call jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    defaults jsonb := '{}';
BEGIN
    CASE in_call ->> 'type'
        WHEN 'http' THEN
            PERFORM bellringer.check_members('call', in_call,
                '{"type": "string", "url": "string", "method": "string", "headers": "object"}', '{url}');
            defaults := '{"method": "POST", "headers": {}}';
            IF jsonb_path_exists(in_call, '$.headers.* ? (@.type() != "string")') THEN
                PERFORM bellringer.refuse_parameter('call.headers', 'their values must be of the type string');
            END IF;
        WHEN 'message' THEN
            PERFORM bellringer.check_members('call', in_call,
                '{"type": "string", "queue": "string", "group": "string?"}', '{queue}');
            defaults := '{"group": null}';
        WHEN 'notification' THEN
            PERFORM bellringer.check_members('call', in_call,
                '{"type": "string", "event_type": "string", "recipients": "array", "subject": "string?"}',
                '{event_type,recipients}');
            defaults := '{"subject": null}';
            IF jsonb_path_exists(in_call, 'strict $.recipients[*] ? (@.type() != "string")') THEN
                PERFORM bellringer.refuse_parameter('call.recipients', 'they must be of the type string');
            END IF;
        WHEN 'function' THEN
            PERFORM bellringer.check_members('call', in_call, '{"type": "string", "name": "string"}', '{name}');
        ELSE
            IF in_call IS NULL OR jsonb_typeof(in_call) <> 'object' THEN
                PERFORM bellringer.refuse_parameter('call', 'it must be a JSON object');
            END IF;
            PERFORM bellringer.refuse_parameter('call.type', 'it must be http, message, notification or function');
    END CASE;
    RETURN defaults || in_call;
END $$;

-- The number of the queue to which the occurrences of a task with that call are handed; made if it is new.
CREATE FUNCTION bellringer.queue_of_call(in_environment uuid, in_call jsonb) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    system_environment constant uuid := '00000000-0000-0000-0000-000000000000';
    this_name text := CASE in_call ->> 'type'
        WHEN 'function' THEN 'scheduler.functions.' || in_environment ELSE 'scheduler.calls' END;
    found_number integer;
BEGIN
    SELECT number INTO found_number FROM bellringer.queues
    WHERE environment_id = system_environment AND name = this_name;
    IF found_number IS NULL THEN
        INSERT INTO bellringer.queues (id, environment_id, name, visibility_timeout_seconds, retention_seconds)
        VALUES (gen_random_uuid(), system_environment, this_name, 600, 7 * 24 * 3600)
        ON CONFLICT (environment_id, name) DO NOTHING;
        SELECT number INTO found_number FROM bellringer.queues
        WHERE environment_id = system_environment AND name = this_name;
    END IF;
    RETURN found_number;
END $$;

-- The one environment of that name, organisation/name, which may be left out while there is only one.
CREATE FUNCTION bellringer.environment_of(in_environment text) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
    owners uuid[];
BEGIN
    SELECT array_agg(found.id) INTO owners FROM bellringer.environments AS found
    WHERE in_environment IS NULL OR found.organisation || '/' || found.name = in_environment;
    IF owners IS NULL THEN
        PERFORM bellringer.refuse_parameter('environment', 'there is no ' || COALESCE(in_environment, 'environment'));
    ELSIF cardinality(owners) > 1 THEN
        PERFORM bellringer.refuse_parameter('environment',
            'there are several: add environment => ''organisation/name''');
    END IF;
    RETURN owners[1];
END $$;

-- Makes or changes the task of that name, and returns the name. `options` are misfire, overlap, time_limit_seconds,
-- retry and rerun_after_crash, as in the HTTP API.
CREATE FUNCTION bellringer.schedule(
    name text, call jsonb, payload jsonb DEFAULT 'null', at timestamptz DEFAULT NULL,
    delay_seconds double precision DEFAULT NULL, cron text DEFAULT NULL, time_zone text DEFAULT 'UTC',
    every_seconds double precision DEFAULT NULL, starting_at timestamptz DEFAULT NULL, options jsonb DEFAULT '{}',
    environment text DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    owner constant uuid := bellringer.environment_of(environment);
    longest_delay constant double precision := 10 * 366 * 24 * 3600.0;
    misfire constant jsonb := COALESCE(options -> 'misfire', '{}');
    retry constant jsonb := COALESCE(options -> 'retry', '{}');
    zone constant text := COALESCE(time_zone, 'UTC');
    moment timestamptz;
    stored bellringer.tasks;
    wanted bellringer.tasks;
    is_same_schedule boolean := false;
    first_gone timestamptz;
BEGIN
    name := COALESCE(name, gen_random_uuid()::text);
    IF name !~ '^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$' OR name LIKE E'%\n' THEN
        PERFORM bellringer.refuse_parameter('name', 'it is 1 to 128 letters, digits, dots, dashes, colons or '
            'underscores, the first a letter or digit');
    ELSIF num_nonnulls(at, delay_seconds, cron, every_seconds) <> 1 THEN
        PERFORM bellringer.refuse_parameter('at, delay_seconds, cron, every_seconds', 'exactly one of them is needed');
    ELSIF zone <> 'UTC' AND cron IS NULL THEN
        PERFORM bellringer.refuse_parameter('time_zone', 'it goes with cron only');
    ELSIF starting_at IS NOT NULL AND every_seconds IS NULL THEN
        PERFORM bellringer.refuse_parameter('starting_at', 'it goes with every_seconds only');
    ELSIF NOT isfinite(at) OR at >= timestamptz '10000-01-01 UTC' THEN
        PERFORM bellringer.refuse_parameter('at', 'it must be before the year 10000');
    ELSIF NOT isfinite(starting_at) OR starting_at < timestamptz '2000-01-01 UTC'
        OR starting_at >= timestamptz '10000-01-01 UTC'
    THEN
        PERFORM bellringer.refuse_parameter('starting_at', 'it must be in the years 2000 to 9999');
    ELSIF cron !~ '^\s*(@\w+|\S+(\s+\S+){4})\s*$' THEN
        PERFORM bellringer.refuse_parameter('cron', 'it has five fields, or is an alias such as @daily');
    ELSIF round(every_seconds * 1000) <> every_seconds * 1000 THEN
        PERFORM bellringer.refuse_parameter('every_seconds', 'it must be a whole number of milliseconds');
    ELSIF octet_length(payload::text) > 262144 THEN
        PERFORM bellringer.refuse_parameter('payload', 'it holds at most 262144 bytes');
    ELSIF call ->> 'type' = 'function' AND jsonb_typeof(payload) NOT IN ('object', 'null') THEN
        PERFORM bellringer.refuse_parameter('payload', 'that of a function is an object with its arguments');
    END IF;
    PERFORM bellringer.check_number('delay_seconds', delay_seconds, 0, longest_delay);
    PERFORM bellringer.check_number('every_seconds', every_seconds, 1, longest_delay);
    PERFORM bellringer.check_options(options);

    wanted.queue := bellringer.queue_of_call(owner, bellringer.complete_call(call));
    wanted.call := bellringer.complete_call(call);
    wanted.payload := COALESCE(payload, 'null')::text;
    wanted.misfire := COALESCE(misfire ->> 'policy', 'latest');
    wanted.misfire_limit := COALESCE((misfire ->> 'limit')::integer, 10);
    wanted.misfire_window_seconds := COALESCE((misfire ->> 'window_seconds')::double precision, 3600);
    wanted.overlap := COALESCE(options ->> 'overlap',
        CASE WHEN num_nonnulls(at, delay_seconds) = 0 THEN 'skip' ELSE 'allow' END);
    wanted.time_limit_seconds := COALESCE((options ->> 'time_limit_seconds')::double precision, 3600);
    wanted.max_retries := COALESCE((retry ->> 'max_retries')::integer, 0);
    wanted.retry_first_seconds := COALESCE((retry ->> 'first_seconds')::double precision, 10);
    wanted.retry_cap_seconds := COALESCE((retry ->> 'cap_seconds')::double precision, 3600);
    wanted.rerun_after_crash := COALESCE((options ->> 'rerun_after_crash')::boolean, false);

    LOOP
        SELECT * INTO stored FROM bellringer.tasks AS task WHERE task.environment_id = owner AND task.name = name
        FOR NO KEY UPDATE;
        moment := clock_timestamp();
        is_same_schedule := stored.number IS NOT NULL AND (
            CASE WHEN delay_seconds IS NULL THEN stored.delay_seconds IS NULL AND stored.once_at IS NOT DISTINCT FROM at
            ELSE stored.delay_seconds IS NOT DISTINCT FROM delay_seconds END
        ) AND (stored.cron, stored.time_zone, stored.every_seconds, stored.starting_at)
            IS NOT DISTINCT FROM (cron, zone, every_seconds, starting_at)
            AND stored.state IN ('active', 'paused');
        -- As of the beginning of the transaction: now() is no time in the past.
        IF at < now() AND NOT is_same_schedule THEN
            PERFORM bellringer.refuse_parameter('at', 'it lies in the past');
        END IF;
        IF is_same_schedule THEN
            wanted.once_at := stored.once_at;
        ELSE
            wanted.once_at := COALESCE(at, moment + make_interval(secs => delay_seconds));
        END IF;
        IF stored.number IS NULL THEN
            -- A picker finds the first fire time. It is after the making, so an interval begins with one that passes.
            INSERT INTO bellringer.tasks (environment_id, name, queue, once_at, delay_seconds, cron, time_zone,
                every_seconds, starting_at, call, payload, misfire, misfire_limit, misfire_window_seconds, overlap,
                time_limit_seconds, max_retries, retry_first_seconds, retry_cap_seconds, rerun_after_crash, is_planned,
                next_fire_at, created_at, modified_at)
            VALUES (owner, name, wanted.queue, wanted.once_at, delay_seconds, cron, zone, every_seconds, starting_at,
                wanted.call, wanted.payload, wanted.misfire, wanted.misfire_limit, wanted.misfire_window_seconds,
                wanted.overlap, wanted.time_limit_seconds, wanted.max_retries, wanted.retry_first_seconds,
                wanted.retry_cap_seconds, wanted.rerun_after_crash, false, LEAST(moment, wanted.once_at),
                LEAST(moment, wanted.once_at) - interval '1 microsecond', moment)
            ON CONFLICT ON CONSTRAINT tasks_environment_id_name_key DO NOTHING;
            EXIT WHEN FOUND;
            CONTINUE;  -- Somebody made one of that name just now.
        END IF;
        EXIT WHEN is_same_schedule AND (stored.queue, stored.call, stored.payload, stored.misfire, stored.misfire_limit,
            stored.misfire_window_seconds, stored.overlap, stored.time_limit_seconds, stored.max_retries,
            stored.retry_first_seconds, stored.retry_cap_seconds, stored.rerun_after_crash)
            = (wanted.queue, wanted.call, wanted.payload, wanted.misfire, wanted.misfire_limit,
            wanted.misfire_window_seconds, wanted.overlap, wanted.time_limit_seconds, wanted.max_retries,
            wanted.retry_first_seconds, wanted.retry_cap_seconds, wanted.rerun_after_crash);
        first_gone := bellringer.unpick(stored.number, moment, NOT is_same_schedule);
        IF NOT is_same_schedule THEN
            PERFORM bellringer.give_up_missed(stored, moment, 'the schedule was changed');
        END IF;
        UPDATE bellringer.tasks AS task SET queue = wanted.queue, once_at = wanted.once_at,
            delay_seconds = schedule.delay_seconds, cron = schedule.cron, time_zone = zone,
            every_seconds = schedule.every_seconds, starting_at = schedule.starting_at, call = wanted.call,
            payload = wanted.payload, misfire = wanted.misfire, misfire_limit = wanted.misfire_limit,
            misfire_window_seconds = wanted.misfire_window_seconds, overlap = wanted.overlap,
            time_limit_seconds = wanted.time_limit_seconds, max_retries = wanted.max_retries,
            retry_first_seconds = wanted.retry_first_seconds, retry_cap_seconds = wanted.retry_cap_seconds,
            rerun_after_crash = wanted.rerun_after_crash, problem = NULL,
            state = CASE stored.state WHEN 'paused' THEN 'paused' ELSE 'active' END,
            is_planned = stored.state = 'paused' OR is_same_schedule AND stored.is_planned,
            next_fire_at = CASE WHEN stored.state = 'paused' THEN NULL
                WHEN is_same_schedule THEN LEAST(stored.next_fire_at, first_gone)
                ELSE LEAST(moment, wanted.once_at) END,
            modified_at = moment
        WHERE task.number = stored.number;
        IF stored.overlap <> wanted.overlap THEN
            PERFORM bellringer.adopt_overlap(stored.number);
        END IF;
        EXIT;
    END LOOP;
    RETURN name;
END $$;

CREATE FUNCTION bellringer.check_options(in_options jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    misfire constant jsonb := COALESCE(in_options -> 'misfire', '{}');
    retry constant jsonb := COALESCE(in_options -> 'retry', '{}');
    first_seconds constant double precision := COALESCE((retry ->> 'first_seconds')::double precision, 10);
    longest_delay constant double precision := 10 * 366 * 24 * 3600.0;
BEGIN
    PERFORM bellringer.check_members('options', in_options, '{"misfire": "object", "overlap": "string?",
        "time_limit_seconds": "number", "retry": "object", "rerun_after_crash": "boolean"}', '{}');
    PERFORM bellringer.check_members('options.misfire', misfire,
        '{"policy": "string", "limit": "integer", "window_seconds": "number"}', '{}');
    PERFORM bellringer.check_members('options.retry', retry,
        '{"max_retries": "integer", "first_seconds": "number", "cap_seconds": "number"}', '{}');
    IF misfire ->> 'policy' NOT IN ('skip', 'latest', 'all', 'window') THEN
        PERFORM bellringer.refuse_parameter('options.misfire.policy', 'it must be skip, latest, all or window');
    ELSIF in_options ->> 'overlap' NOT IN ('allow', 'skip', 'queue', 'replace') THEN
        PERFORM bellringer.refuse_parameter('options.overlap', 'it must be allow, skip, queue or replace');
    END IF;
    PERFORM bellringer.check_number('options.misfire.limit', (misfire ->> 'limit')::double precision, 1, 1000);
    PERFORM bellringer.check_number('options.misfire.window_seconds', (misfire ->> 'window_seconds')::double precision,
        0, longest_delay);
    PERFORM bellringer.check_number('options.time_limit_seconds',
        (in_options ->> 'time_limit_seconds')::double precision, 0.001, 7 * 24 * 3600.0);
    PERFORM bellringer.check_number('options.retry.max_retries', (retry ->> 'max_retries')::double precision, 0, 100);
    PERFORM bellringer.check_number('options.retry.first_seconds', first_seconds, 0.001, longest_delay);
    PERFORM bellringer.check_number('options.retry.cap_seconds', (retry ->> 'cap_seconds')::double precision,
        first_seconds, longest_delay);
END $$;

-- Cancels the task of that name for good, in the caller's transaction; says whether there was one.
CREATE FUNCTION bellringer.unschedule(name text, environment text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM bellringer.stop_task(bellringer.environment_of(environment), name, 'cancelled');
    RETURN FOUND;
END $$;
