"""Operates a dq server by the generated client. Arguments: the address and a token."""

import sys

from dq_client import AuthenticatedClient, Client
from dq_client.api.jobs import (
    cancel_job,
    get_job,
    get_job_timeline,
    list_jobs,
    replay_jobs,
    reschedule_job,
    reschedule_jobs,
    schedule_job,
)
from dq_client.api.operations import get_readiness, list_audit_entries, list_runners
from dq_client.api.queues import (
    get_overview,
    list_dead_groups,
    list_queues,
    pause_queue,
    purge_queue,
    resume_queue,
)
from dq_client.api.schedules import get_schedule, put_schedule
from dq_client.api.work import claim_jobs, renew_leases, settle_leases
from dq_client.models import (
    BulkBody,
    BulkReschedule,
    ClaimRequest,
    CronSchedule,
    JobFilter,
    JobResult,
    NewBinaryJob,
    NewJob,
    PatchBody,
    Problem,
    PurgeRequest,
    RenewalResultRenewed,
    RenewBody,
    SettleBody,
    SettlementResultSettled,
    TimelineEventScheduled,
    WaitReasonNotDue,
    WantedQueues,
    WorkOutcome,
)

address, token = sys.argv[1:]
client = AuthenticatedClient(base_url=address, token=token)
queue = "a/../b?c#d"

# A request with an idempotency key, twice.
body = NewJob(payload={"order": 4711}, key="order/1", due="30m")
job = schedule_job.sync(queue, client=client, body=body, idempotency_key="request-1")
assert job.result == "created", job
assert schedule_job.sync(queue, client=client, body=body, idempotency_key="request-1").id == job.id
assert schedule_job.sync(queue, client=client, body=body).result == "kept"
seen = get_job.sync(queue, "key:order/1", client=client)
assert seen.id == job.id and seen.state == "scheduled", seen
assert seen.payload.content_type == "application/json", seen
timeline = get_job_timeline.sync(queue, "key:order/1", client=client)
assert isinstance(timeline.events[0], TimelineEventScheduled), timeline
assert isinstance(timeline.now, WaitReasonNotDue) and timeline.now.in_ms > 0, timeline
binary = NewBinaryJob(payload_base64="AP8=", content_type="application/x-thing", due="1h")
binary = schedule_job.sync("BINARY", client=client, body=binary)
assert get_job.sync("BINARY", str(binary.id), client=client).payload.base64 == "AP8="

# Errors are problems with a remedy.
wrong = schedule_job.sync(queue, client=client, body=NewJob(payload=1, due="soon"))
assert isinstance(wrong, Problem) and wrong.status == 400 and wrong.remedy, wrong
missing = get_job.sync(queue, "key:nothing", client=client)
assert isinstance(missing, Problem) and missing.status == 404, missing
stranger = AuthenticatedClient(base_url=address, token="wrong")
assert list_queues.sync(client=stranger).status == 401

# Many jobs, by page.
for number in range(2, 6):
    schedule_job.sync(queue, client=client, body=NewJob(payload=number, key=f"order/{number}", due="1h"))
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
assert {view.queue: view.paused for view in list_queues.sync(client=client)} == {
    queue: True,
    "BINARY": False,
    "MAIL": False,
}
assert resume_queue.sync(queue, client=client).changed
groups = list_dead_groups.sync("MAIL", client=client).groups
assert [group.pattern for group in groups] == ["host # refused"], groups
group = JobFilter(error=groups[0].search)
assert replay_jobs.sync("MAIL", client=client, body=BulkBody(filter_=group, dry_run=True)).matching == 1
some = BulkBody(filter_=group, expected=1)
assert replay_jobs.sync("MAIL", client=client, body=some).changed == 1
later = BulkReschedule(due="3h", filter_=JobFilter(key_prefix="order/3"))
assert reschedule_jobs.sync(queue, client=client, body=later).changed == 1
refused = purge_queue.sync(queue, client=client, body=PurgeRequest(confirm="a"))
assert isinstance(refused, Problem) and refused.status == 409, refused
assert purge_queue.sync(queue, client=client, body=PurgeRequest(confirm=queue)).changed == 4

# Work.
due = schedule_job.sync("WORK", client=client, body=NewJob(payload={"order": 17}))
claim = ClaimRequest(queues=WantedQueues.from_dict({"WORK": 1}), wait="20s", worker="py-7f3")
claimed = claim_jobs.sync(client=client, body=claim)
[work] = claimed.jobs
assert work.id == due.id and work.payload == {"order": 17} and work.attempt == 1, work
renewals = renew_leases.sync(client=client, body=RenewBody(leases=[work.lease]))
[renewed] = renewals.leases
assert isinstance(renewed, RenewalResultRenewed) and renewed.until >= work.lease_ends, renewed
assert get_job.sync("WORK", str(work.id), client=client).state == "running"
done = SettleBody(results=[JobResult(lease=work.lease, outcome=WorkOutcome.DONE)])
[settled] = settle_leases.sync(client=client, body=done).results
assert isinstance(settled, SettlementResultSettled), settled
assert list_jobs.sync("WORK", client=client).jobs == []
claim.wait = "0s"
assert claim_jobs.sync_detailed(client=client, body=claim).status_code == 204

# Schedules.
nightly = CronSchedule(queue="REPORT", cron="30 2 * * *", tz="Europe/Stockholm", payload={"region": "eu"})
assert put_schedule.sync("nightly", client=client, body=nightly).changed
seen = get_schedule.sync("nightly", client=client, next_=2)
assert len(seen.next_) == 2 and seen.overlap == "skip" and seen.cron == nightly.cron, seen

assert get_readiness.sync(client=Client(base_url=address)) == "ok"
assert get_overview.sync(client=client).store == "memory"
[runner] = list_runners.sync(client=client)
assert [worker.name for worker in runner.workers] == ["py-7f3"], runner
assert "purge" in [entry.action for entry in list_audit_entries.sync(client=client)]
print("done")
