"""Operates a dq server by the generated client. Arguments: the address and a token."""

import sys

from dq_client import AuthenticatedClient
from dq_client.api.jobs import cancel_job, change_jobs, get_job, list_jobs, reschedule_job, schedule_job
from dq_client.api.operations import list_audit_entries, list_runners
from dq_client.api.queues import (
    get_overview,
    list_dead_groups,
    list_queues,
    pause_queue,
    purge_queue,
    resume_queue,
)
from dq_client.models import (
    BulkBody,
    JobFilter,
    NewJobBody,
    PatchBody,
    Problem,
    PurgeRequest,
)

address, token = sys.argv[1:]
client = AuthenticatedClient(base_url=address, token=token)
queue = "a/../b?c#d"

# A request with an idempotency key, twice.
body = NewJobBody(payload={"order": 4711}, key="order/1", due="30m")
job = schedule_job.sync(queue, client=client, body=body, idempotency_key="request-1")
assert job.result == "created", job
assert schedule_job.sync(queue, client=client, body=body, idempotency_key="request-1").id == job.id
assert schedule_job.sync(queue, client=client, body=body).result == "kept"
seen = get_job.sync(queue, "key:order/1", client=client)
assert seen.id == job.id and seen.state == "scheduled", seen
assert seen.payload.content_type == "application/json", seen

# Errors are problems with a remedy.
wrong = schedule_job.sync(queue, client=client, body=NewJobBody(payload=1, due="soon"))
assert isinstance(wrong, Problem) and wrong.status == 400 and wrong.remedy, wrong
missing = get_job.sync(queue, "key:nothing", client=client)
assert isinstance(missing, Problem) and missing.status == 404, missing
stranger = AuthenticatedClient(base_url=address, token="wrong")
assert list_queues.sync(client=stranger).status == 401

# Many jobs, by page.
for number in range(2, 6):
    schedule_job.sync(queue, client=client, body=NewJobBody(payload=number, key=f"order/{number}", due="1h"))
keys, after = [], None
while True:
    page = list_jobs.sync(queue, client=client, key_prefix="order/", limit=2, after=after)
    keys += [job.key for job in page.jobs]
    after = page.next_
    if not after:
        break
assert sorted(keys) == [f"order/{number}" for number in range(1, 6)], keys

moved = reschedule_job.sync(queue, "key:order/2", client=client, body=PatchBody(due="2h"))
assert moved.due, moved
assert cancel_job.sync(queue, "key:order/2", client=client).result == "cancelled"

# Changes of queues.
assert pause_queue.sync(queue, client=client).changed
assert {view.queue: view.paused for view in list_queues.sync(client=client)} == {queue: True, "MAIL": False}
assert resume_queue.sync(queue, client=client).changed
groups = list_dead_groups.sync("MAIL", client=client).groups
assert [group.pattern for group in groups] == ["host # refused"], groups
group = JobFilter(error=groups[0].search)
assert change_jobs.sync("MAIL", "replay", client=client, body=BulkBody(filter_=group, dry_run=True)).matching == 1
some = BulkBody(filter_=group, expected=1)
assert change_jobs.sync("MAIL", "replay", client=client, body=some).changed == 1
refused = purge_queue.sync(queue, client=client, body=PurgeRequest(confirm="a"))
assert isinstance(refused, Problem) and refused.status == 400, refused
assert purge_queue.sync(queue, client=client, body=PurgeRequest(confirm=queue)).changed == 4

assert get_overview.sync(client=client).store == "memory"
assert list_runners.sync(client=client) == []
assert "purge" in [entry.action for entry in list_audit_entries.sync(client=client)]
print("done")
