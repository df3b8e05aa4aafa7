use dq::QueueCode;

#[derive(QueueCode)]
enum Code {
    OrderTimeout,
    SendMail { to: String },
    SendSms(String),
}

fn main() {}
