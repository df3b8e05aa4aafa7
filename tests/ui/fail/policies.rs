use dq::delay_handler;

#[delay_handler("A", escalate = [])]
async fn no_steps() {}

#[delay_handler("B", escalate = ["15m", "0s"])]
async fn no_delay() {}

#[delay_handler("C", escalate = "15m")]
async fn no_list() {}

#[delay_handler("E", escalate_from = "first_due")]
async fn from_without_steps() {}

#[delay_handler("F", escalate = ["15m"], escalate_from = "start")]
async fn from_elsewhere() {}

async fn is_open(_order: u64) -> bool {
    true
}

#[delay_handler("A", guard = "is_open")]
async fn no_path(_order: u64) {}

#[delay_handler("B", guard_timeout = "1s")]
async fn no_guard(_order: u64) {}

#[delay_handler("A", late = "5m")]
async fn no_parentheses() {}

#[delay_handler("B", late(after = "0s", then = "drop"))]
async fn out_of_range() {}

#[delay_handler("C", late(after = "5m"))]
async fn incomplete() {}

#[delay_handler("D", late(after = "5m", then = "queue:"))]
async fn no_queue() {}

#[delay_handler("A", version = 0)]
async fn zero(_order: u64) {}

#[delay_handler("B", upgrade_from(1 = upgrade))]
async fn no_version(_order: u64) {}

#[delay_handler("C", version = 3, upgrade_from(1 = upgrade))]
async fn gap_at_the_end(_order: u64) {}

#[delay_handler("D", version = 4, upgrade_from(1 = upgrade, 3 = upgrade))]
async fn gap_between(_order: u64) {}

#[delay_handler("F", version = 2, upgrade_from(1 = upgrade))]
async fn no_payload() {}

#[delay_handler("G", aliases = ["G", ""])]
async fn empty_alias() {}

#[delay_handler("I", aliases = ["I", "OLD", "OLD"])]
async fn repeated_alias() {}

#[delay_handler("J", version = 2, upgrade_from())]
async fn nothing_to_upgrade_from(_order: u64) {}

#[delay_handler("K", version = 1, upgrade_from(0 = upgrade))]
async fn no_version_before(_order: u64) {}

fn upgrade(old: u32) -> u64 {
    old.into()
}

fn main() {}
