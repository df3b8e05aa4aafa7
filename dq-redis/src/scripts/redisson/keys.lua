-- Redisson's keys, and the words of the scripts in this folder. A line before this text sets two
-- locals from the settings:
--   FORMAT      'current' or 'legacy': how members are packed, see `parse`
--   VISIBILITY  which waiting jobs the order list holds besides those that Java offered: with
--               'hidden' none; with 'approximate' all, removed some time after they ceased to wait;
--               with 'exact' all, removed at once
--
-- A queue has one partition: the native keys, which library/keys.lua describes, and four more:
--   timeout      sorted set  redisson_delay_queue_timeout:{queue}: waiting jobs by due time, called
--                            *members*: an id, a length and the payload in one string
--   order        list        redisson_delay_queue:{queue}, the *order list*: the members once more,
--                            in the order in which they were offered. Java's size, contains, remove,
--                            readAll and poll read it
--   destination  list        named like the queue, the *destination list*: payloads that Java's
--                            take() pops. Java's transfer script moves due jobs there
--   index        hash        waiting jobs that this backend scheduled or has found by locate.lua, by
--                            member id. An *index entry* is 8 bytes of due time (big-endian), the
--                            handle (14 bytes) and the record prefix. The hash is named `outside`
--
-- Until its first lease a job is a member. With the lease it becomes a *native job*: leases,
-- retries and dead jobs are kept in the native keys only. Java takes and removes members without
-- updating the index, so an index entry counts only while its member exists.
--
-- A *member id* is the id in a member: a job id, shortened as redisson/member.rs says. The hash
-- `meta` has two more fields: `garbage`, about how many entries of the order list do not wait any
-- more, and `sweep`, the HSCAN cursor of sweep_index.

local LAYOUT_KEYS = { 'timeout', 'order', 'destination', 'index' }
local LAYOUT_COMMANDS = { 'ZCARD', 'LLEN', 'LLEN', 'HSTRLEN' }
