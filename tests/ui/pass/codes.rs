//! Expressions that can be a handler's code.

use dq::{QueueCode, delay_handler};

const CONSTANT: &str = "CONSTANT";

mod codes {
    pub const INNER: &str = "INNER";
}

#[derive(QueueCode)]
enum Code {
    OrderTimeout,
    #[queue_code("ANOTHER")]
    Other,
}

#[derive(QueueCode, Debug, Clone, Copy)]
#[queue_code(rename_all = "kebab-case", crate = "dq")]
pub enum Kebab {
    OrderTimeout,
    r#Match,
}

#[derive(QueueCode)]
enum Never {}

struct Numbered(u8);

impl QueueCode for Numbered {
    fn code(&self) -> std::borrow::Cow<'static, str> {
        format!("QUEUE_{}", self.0).into()
    }
}

#[delay_handler("LITERAL")]
async fn literal() {}

#[delay_handler(r#"订单 "TIMEOUT""#)]
async fn raw_literal() {}

#[delay_handler(CONSTANT)]
async fn constant() {}

#[delay_handler(crate::codes::INNER, max_attempts = 1)]
async fn path() {}

#[delay_handler(Code::OrderTimeout)]
async fn variant() {}

#[delay_handler(Numbered(7))]
async fn expression() {}

#[delay_handler(format!("QUEUE_{}", 8))]
async fn computed() {}

fn code<Q: dq::Queue>() -> String {
    Q::code().into_owned()
}

fn main() {
    assert_eq!(code::<literal>(), "LITERAL");
    assert_eq!(code::<raw_literal>(), "订单 \"TIMEOUT\"");
    assert_eq!(code::<constant>(), "CONSTANT");
    assert_eq!(code::<path>(), "INNER");
    assert_eq!(code::<variant>(), "ORDER_TIMEOUT");
    assert_eq!(code::<expression>(), "QUEUE_7");
    assert_eq!(code::<computed>(), "QUEUE_8");
    assert_eq!(Code::Other.code(), "ANOTHER");
    assert_eq!(Kebab::OrderTimeout.code(), "order-timeout");
    assert_eq!(Kebab::Match.code(), "match");
    let _: fn(&Never) -> _ = <Never as QueueCode>::code;
}
