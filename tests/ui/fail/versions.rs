use dq::delay_handler;

#[delay_handler("A", version = 0)]
async fn zero(_order: u64) {}

#[delay_handler("B", upgrade_from(1 = upgrade))]
async fn no_version(_order: u64) {}

#[delay_handler("C", version = 3, upgrade_from(1 = upgrade))]
async fn gap_at_the_end(_order: u64) {}

#[delay_handler("D", version = 4, upgrade_from(1 = upgrade, 3 = upgrade))]
async fn gap_between(_order: u64) {}

#[delay_handler("E", version = 2, upgrade_from = upgrade)]
async fn no_parentheses(_order: u64) {}

#[delay_handler("F", version = 2, upgrade_from(1 = upgrade))]
async fn no_payload() {}

#[delay_handler("G", aliases = ["G", ""])]
async fn empty_alias() {}

#[delay_handler("I", aliases = ["I", "OLD", "OLD"])]
async fn repeated_alias() {}

#[delay_handler("H", aliases = "OLD")]
async fn no_list() {}

#[delay_handler("J", version = 2, upgrade_from())]
async fn nothing_to_upgrade_from(_order: u64) {}

#[delay_handler("K", version = 1, upgrade_from(0 = upgrade))]
async fn no_version_before(_order: u64) {}

fn upgrade(old: u32) -> u64 {
    old.into()
}

fn main() {}
