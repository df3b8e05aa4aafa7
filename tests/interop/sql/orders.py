"""Orders that expire unless they are paid: each row and its job in one transaction.

    dq migrate --url postgres://shop@localhost/shop
    psql shop -c "CREATE TABLE orders (reference text PRIMARY KEY, paid boolean NOT NULL DEFAULT false)"
    pip install "psycopg[binary]"
    python orders.py postgres://shop@localhost/shop
"""

import sys
from datetime import datetime, timezone

import psycopg
from psycopg.types.json import Jsonb


def place(db, reference, due, card):
    with db.transaction():
        db.execute("INSERT INTO orders (reference) VALUES (%s)", [reference])
        row = db.execute(
            "SELECT outcome FROM dq.schedule('ORDER_TIMEOUT', %s, %s, key => %s)",
            [Jsonb({"reference": reference}), due, reference],
        ).fetchone()
        charge(card)  # An exception rolls back the row and the job.
        return row[0]


def pay(db, reference):
    with db.transaction():
        db.execute("UPDATE orders SET paid = true WHERE reference = %s", [reference])
        return db.execute("SELECT dq.cancel('ORDER_TIMEOUT', %s)", [reference]).fetchone()[0]


def move(db, reference, due):
    call = "SELECT dq.reschedule('ORDER_TIMEOUT', %s, %s)"
    return db.execute(call, [due, reference]).fetchone()[0]


def find(db, reference):
    call = "SELECT state, payload FROM dq.get('ORDER_TIMEOUT', %s)"
    row = db.execute(call, [reference]).fetchone()
    return f"{row[0]} {row[1].decode()}" if row else "none"


def charge(card):
    if card == "expired":
        raise ValueError("card declined")


def main(url):
    now, later = datetime.now(timezone.utc), datetime(2100, 1, 1, tzinfo=timezone.utc)
    with psycopg.connect(url, autocommit=True) as db:
        print("place:", place(db, "Zoë 🎁", now, "valid"))
        try:
            place(db, "declined", now, "expired")
        except ValueError as error:
            print("place:", error)

        print("place:", place(db, "paid", later, "valid"))
        print("find:", find(db, "paid"))
        print("pay:", pay(db, "paid"))
        print("find:", find(db, "paid"))

        print("place:", place(db, "moved", later, "valid"))
        print("move:", move(db, "moved", now))
        print("place:", place(db, "open", later, "valid"))

        for reference, due in [("line\nbreak", now), ("no zone", datetime(2100, 1, 1))]:
            try:
                place(db, reference, due, "valid")
            except psycopg.errors.InvalidParameterValue as error:
                print("refused:", error)


main(sys.argv[1])
