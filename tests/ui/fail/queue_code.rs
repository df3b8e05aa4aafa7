use dq::QueueCode;

#[derive(QueueCode)]
struct OrderTimeout;

#[derive(QueueCode)]
enum CodeOnVariantWithFields {
    OrderTimeout,
    SendMail { to: String },
    SendSms(String),
}

#[derive(QueueCode)]
enum CodeTwiceInEnum {
    OrderTimeout,
    #[queue_code("ORDER_TIMEOUT")]
    Order,
    SendSms,
    SendSMS,
}

#[derive(QueueCode)]
#[queue_code(rename_all = "UPPERCASE")]
enum Case {
    A,
}

#[derive(QueueCode)]
#[queue_code(rename = "A")]
enum Key {
    A,
}

#[derive(QueueCode)]
enum Variants {
    #[queue_code("")]
    Empty,
    #[queue_code(name = "B")]
    Assigned,
    #[queue_code("C")]
    #[queue_code("D")]
    Twice,
}

fn main() {}
