use dq::delay_handler;

struct Mailer;

impl Mailer {
    #[delay_handler("SEND_MAIL")]
    async fn send(&self, _to: String) {}
}

fn main() {}
