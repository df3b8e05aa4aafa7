//! A help desk that escalates tickets: it reminds the agent, then the team lead, then hands the
//! ticket over. Closing a ticket ends this at any step.
//!
//! ```sh
//! cargo run -p dq-examples --example work_ticket    # a day takes 200 milliseconds
//! ```

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use dq::prelude::*;
use dq_examples::all_ended;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Ticket {
    id: u64,
}

/// The ids of the open tickets.
#[derive(Clone, Default)]
struct Desk(Arc<Mutex<BTreeSet<u64>>>);

impl Desk {
    fn open(&self, id: u64) {
        self.0.lock().unwrap().insert(id);
    }

    fn close(&self, id: u64) {
        self.0.lock().unwrap().remove(&id);
    }

    fn is_open(&self, id: u64) -> bool {
        self.0.lock().unwrap().contains(&id)
    }
}

/// The guard: it runs before each step, so that a closed ticket is never escalated.
async fn is_open(State(desk): State<Desk>, ticket: Ticket) -> bool {
    desk.is_open(ticket.id)
}

// A real help desk uses ["24h", "24h", "48h"].
#[delay_handler("TICKET", escalate = ["200ms", "200ms", "400ms"], guard = is_open)]
async fn escalate(ctx: JobContext, ticket: Ticket) -> HandlerResult {
    match ctx.step() {
        0 => println!("ticket {}: the agent is reminded", ticket.id),
        1 => println!("ticket {}: the team lead steps in", ticket.id),
        _ => {
            println!("ticket {}: another team takes over", ticket.id);
            return Ok(Outcome::Done);
        }
    }
    Ok(Outcome::next_step())
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let dq = Dq::connect("memory:").await?;
    let desk = Desk::default();
    for id in [1, 2, 3] {
        desk.open(id);
        let scheduled = dq.schedule::<escalate>(Ticket { id }).key(id).await?;
        println!("ticket {id}: opened as job {}", scheduled.id());
    }
    // Closed before the first step: the key cancels all steps.
    desk.close(2);
    println!("ticket 2: {:?}", dq.cancel::<escalate>(2).await?);
    // Closed without a cancel: the guard asks the desk.
    desk.close(3);
    dq.runner().state(desk).run_until(all_ended(dq.queue_of::<escalate>()?)).await
}
