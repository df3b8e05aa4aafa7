use dq::QueueCode;

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
