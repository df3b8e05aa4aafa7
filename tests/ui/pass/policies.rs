//! Handlers with an escalation, a guard, a late policy, versions and aliases.

use std::time::Duration;

use dq::config::{LateAction, LatePolicy};
use dq::{BoxError, EscalateFrom, Guard, HandlerFn, JobContext, Outcome, Queue, QueueName, State, delay_handler};

#[derive(serde::Deserialize)]
struct OrderV1 {
    id: u64,
}

#[derive(serde::Deserialize)]
struct OrderV2 {
    id: String,
}

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Order {
    number: u64,
}

fn upgrade_v1(old: OrderV1) -> OrderV2 {
    OrderV2 { id: old.id.to_string() }
}

fn upgrade_v2(old: OrderV2) -> Result<Order, std::num::ParseIntError> {
    Ok(Order { number: old.id.parse()? })
}

mod guards {
    use super::*;

    pub async fn is_open(
        ctx: JobContext,
        State(limit): State<u64>,
        order: Order,
    ) -> Result<bool, BoxError> {
        Ok(order.number < limit && !ctx.is_cancelled())
    }
}

#[delay_handler(
    "ORDERS",
    escalate = ["15m", "1h", "1d"],
    escalate_from = "first_due",
    guard = guards::is_open,
    guard_timeout = "2s",
    late(after = "5m", then = "queue:ESCALATIONS"),
    version = 3,
    upgrade_from(1 = upgrade_v1, 2 = upgrade_v2),
    aliases = ["OLD_ORDERS", "OLDER_ORDERS"],
)]
async fn orders(_ctx: JobContext, State(_limit): State<u64>, order: Order) -> Outcome {
    match order.number {
        0 => Outcome::Done,
        _ => Outcome::next_step(),
    }
}

async fn by_state(State(limit): State<u64>) -> bool {
    limit > 0
}

/// A guard may have extractors that the handler lacks.
async fn by_context(ctx: JobContext, number: u64) -> dq::Result<Guard> {
    Ok(if ctx.attempt() > number as u32 { Guard::skip("late") } else { Guard::Run })
}

#[delay_handler("LESS", guard = by_state)]
async fn less(_ctx: JobContext, State(_limit): State<u64>, _order: Order) {}

#[delay_handler("MORE", guard = by_context)]
async fn more(_number: u64) {}

async fn always() -> Guard {
    Guard::skip("never needed")
}

#[delay_handler("BLOCKING", blocking, guard = always, late(after = "1s", then = "run"))]
fn blocking() {}

#[delay_handler("SKIP", late(after = "1s", then = "skip"), version = 1)]
async fn skip() {}

#[delay_handler("DEAD", late(then = "dead", after = "1h",))]
async fn dead(_number: u64) {}

fn main() {
    let minutes = |minutes| Duration::from_secs(60_u64 * minutes);
    assert_eq!(orders::STEPS, [minutes(15), minutes(60), minutes(24 * 60)]);
    assert_eq!(orders::ESCALATE_FROM, EscalateFrom::FirstDue);
    assert_eq!(less::ESCALATE_FROM, EscalateFrom::StepEnd);
    assert_eq!(orders::VERSION, Some(3));
    assert_eq!(orders::ALIASES, ["OLD_ORDERS", "OLDER_ORDERS"]);
    let escalations = LateAction::Queue(QueueName::new("ESCALATIONS").unwrap());
    assert_eq!(orders::settings().late, Some(LatePolicy::new(minutes(5), escalations)));
    assert_eq!(skip::settings().late.unwrap().then, LateAction::Skip);
    assert_eq!(dead::settings().late.unwrap().then, LateAction::Dead);
    assert_eq!(skip::VERSION, Some(1));
    assert_eq!((dead::VERSION, dead::STEPS), (None, &[][..]));
}
