//! Defects in claims, leases and settlements.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dq_core::{
    Backend, ClaimParams, Claimed, FencingToken, JobId, JobRef, Layer, LeasedJob, QueueName,
    Renewal, Renewed, Result, Settled, Settlement, Timestamp, Verdict, Want, async_trait,
};
use dq_testkit::fixture::done_settlements;

use super::subject::Opened;

/// Defines a layer that changes the answer to each claim.
macro_rules! changes_claims {
    ($name:ident, $change:expr) => {
        layer!($name, {
            async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
                let change: fn(&mut Claimed) = $change;
                let mut claimed = self.inner.claim(params).await?;
                change(&mut claimed);
                Ok(claimed)
            }
        });
    };
}

// Cancels jobs with an expired lease.
layer!(LosesExpired [leases: Mutex<HashMap<JobId, (QueueName, Timestamp)>>], {
    async fn before(&self, _: &'static str) -> Result<()> {
        let now = self.inner.now().await?;
        let mut expired = Vec::new();
        self.leases.lock().unwrap().retain(|id, (queue, until)| {
            if *until <= now {
                expired.push(JobRef::new(queue.clone(), *id));
            }
            *until > now
        });
        self.inner.cancel(&expired).await.map(drop)
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let claimed = self.inner.claim(params).await?;
        let leases = claimed
            .jobs
            .iter()
            .map(|leased| (leased.job.id, (leased.job.queue.clone(), leased.leased_until)));
        self.leases.lock().unwrap().extend(leases);
        Ok(claimed)
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let answers = self.inner.renew(renewals).await?;
        for (renewal, answer) in renewals.iter().zip(&answers) {
            if let Renewed::Until(until) = answer {
                let lease = (renewal.lease.queue.clone(), *until);
                self.leases.lock().unwrap().insert(renewal.lease.job, lease);
            }
        }
        Ok(answers)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let answers = self.inner.settle(settlements).await?;
        for (settlement, answer) in settlements.iter().zip(&answers) {
            if *answer == Settled::Accepted {
                self.leases.lock().unwrap().remove(&settlement.lease.job);
            }
        }
        Ok(answers)
    }
});

// Leases jobs again to a concurrent claim that finds none.
layer!(LeasesTwice [claims: AtomicUsize, last: Mutex<Vec<LeasedJob>>], {
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let only_claim = self.claims.fetch_add(1, Ordering::AcqRel) == 0;
        tokio::task::yield_now().await;
        let mut claimed = self.inner.claim(params).await?;
        let mut last = std::mem::take(&mut *self.last.lock().unwrap());
        last.retain(|leased| params.wants.iter().any(|want| want.queue == leased.job.queue));
        if !only_claim && claimed.jobs.is_empty() && params.limit >= last.len() {
            claimed.jobs = last;
        } else {
            self.last.lock().unwrap().clone_from(&claimed.jobs);
        }
        self.claims.fetch_sub(1, Ordering::AcqRel);
        Ok(claimed)
    }
});

// Replaces any token for a leased job with the newest.
layer!(AcceptsStale [tokens: Mutex<HashMap<JobId, FencingToken>>], {
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let claimed = self.inner.claim(params).await?;
        let tokens = claimed.jobs.iter().map(|leased| (leased.job.id, leased.token));
        self.tokens.lock().unwrap().extend(tokens);
        Ok(claimed)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let mut settlements = settlements.to_vec();
        for settlement in &mut settlements {
            if let Some(token) = self.tokens.lock().unwrap().get(&settlement.lease.job) {
                settlement.lease.token = *token;
            }
        }
        self.inner.settle(&settlements).await
    }
});

// Checks the token, then settles the newest lease. Meanwhile another claim may lease the job.
layer!(SettlesInTwoSteps [tokens: Mutex<HashMap<JobId, FencingToken>>], {
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let claimed = self.inner.claim(params).await?;
        let tokens = claimed.jobs.iter().map(|leased| (leased.job.id, leased.token));
        self.tokens.lock().unwrap().extend(tokens);
        Ok(claimed)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let mut answers = Vec::new();
        for mut settlement in settlements.iter().cloned() {
            let newest = |job: &JobId| self.tokens.lock().unwrap().get(job).copied();
            if newest(&settlement.lease.job) == Some(settlement.lease.token) {
                tokio::task::yield_now().await;
                settlement.lease.token = newest(&settlement.lease.job).expect("it was leased");
            }
            answers.append(&mut self.inner.settle(&[settlement]).await?);
        }
        Ok(answers)
    }
});

// All leases of a job have one token.
changes_claims!(ReusesTokens, |claimed| {
    for leased in &mut claimed.jobs {
        leased.token = FencingToken(1);
    }
});

// Settles jobs as done when it leases them.
layer!(AcknowledgesOnClaim, {
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let claimed = self.inner.claim(params).await?;
        self.inner.settle(&done_settlements(&claimed)).await?;
        Ok(claimed)
    }
});

// Leases jobs for much longer than it answers.
layer!(NeverExpires, {
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let long = |want: &Want| Want::new(want.queue.clone(), want.max, want.lease_for * 1_000);
        let wants: Vec<Want> = params.wants.iter().map(long).collect();
        let params = ClaimParams::new(&wants, params.limit, params.worker);
        let mut claimed = self.inner.claim(params).await?;
        for leased in &mut claimed.jobs {
            leased.leased_until = claimed.now + leased.leased_until.since(claimed.now) / 1_000;
        }
        Ok(claimed)
    }
});

layer!(RenewsAnything, {
    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let now = self.inner.now().await?;
        self.inner.renew(renewals).await?;
        Ok(renewals.iter().map(|renewal| Renewed::Until(now + renewal.lease_for)).collect())
    }
});

// Counts neither deliveries nor lost leases.
changes_claims!(ForgetsCounts, |claimed| {
    for leased in &mut claimed.jobs {
        leased.job.deliveries -= leased.job.losses;
        leased.job.losses = 0;
    }
});

// Counts an expired lease as a failed attempt, too.
changes_claims!(CountsExpiries, |claimed| {
    for leased in &mut claimed.jobs {
        leased.job.attempts += leased.job.losses;
    }
});

// Returns jobs with equal due times in reverse order.
changes_claims!(ReordersEqualTimes, |claimed| {
    claimed.jobs.reverse();
    claimed.jobs.sort_by_key(|leased| leased.job.due);
});

changes_claims!(OmitsNextDue, |claimed| claimed.next_due = None);

layer!(IgnoresLimit, {
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.inner.claim(ClaimParams::new(params.wants, usize::MAX, params.worker)).await
    }
});

// Settles a retry as a snooze.
changes_verdicts!(ForgetsAttempts, |verdict| {
    if let Verdict::Retry { due, .. } = verdict {
        *verdict = Verdict::Snooze(*due);
    }
});
