use dq::QueueCode;

#[derive(QueueCode)]
enum Code {
    OrderTimeout,
    #[queue_code("ORDER_TIMEOUT")]
    Order,
    SendSms,
    SendSMS,
}

fn main() {}
