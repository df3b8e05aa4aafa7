// Orders that expire unless they are paid: each row and its job in one transaction.
//
//     dq migrate --url postgres://shop@localhost/shop
//     psql shop -c "CREATE TABLE orders (reference text PRIMARY KEY, paid boolean NOT NULL DEFAULT false)"
//     npm install pg
//     node orders.js postgres://shop@localhost/shop

const { Client } = require('pg');

async function transaction(db, work) {
  await db.query('BEGIN');
  try {
    const result = await work();
    await db.query('COMMIT');
    return result;
  } catch (error) {
    await db.query('ROLLBACK');
    throw error;
  }
}

function place(db, reference, due, card) {
  return transaction(db, async () => {
    await db.query('INSERT INTO orders (reference) VALUES ($1)', [reference]);
    const { rows } = await db.query(
      "SELECT outcome FROM dq.schedule('ORDER_TIMEOUT', $1, $2, key => $3)",
      [{ reference }, due, reference],
    );
    charge(card); // An exception rolls back the row and the job.
    return rows[0].outcome;
  });
}

function pay(db, reference) {
  return transaction(db, async () => {
    await db.query('UPDATE orders SET paid = true WHERE reference = $1', [reference]);
    const { rows } = await db.query("SELECT dq.cancel('ORDER_TIMEOUT', $1)", [reference]);
    return rows[0].cancel;
  });
}

async function move(db, reference, due) {
  const { rows } = await db.query("SELECT dq.reschedule('ORDER_TIMEOUT', $1, $2)", [due, reference]);
  return rows[0].reschedule;
}

async function find(db, reference) {
  const { rows } = await db.query("SELECT state, payload FROM dq.get('ORDER_TIMEOUT', $1)", [reference]);
  return rows.length ? `${rows[0].state} ${rows[0].payload}` : 'none';
}

function charge(card) {
  if (card === 'expired') throw new Error('card declined');
}

async function main(url) {
  const [now, later] = [new Date(), new Date('2100-01-01T00:00:00Z')];
  const db = new Client(url);
  await db.connect();
  console.log('place:', await place(db, 'Zoë 🎁', now, 'valid'));
  await place(db, 'declined', now, 'expired').catch((error) => console.log('place:', error.message));

  console.log('place:', await place(db, 'paid', later, 'valid'));
  console.log('find:', await find(db, 'paid'));
  console.log('pay:', await pay(db, 'paid'));
  console.log('find:', await find(db, 'paid'));

  console.log('place:', await place(db, 'moved', later, 'valid'));
  console.log('move:', await move(db, 'moved', now));
  console.log('place:', await place(db, 'open', later, 'valid'));

  await place(db, 'line\nbreak', now, 'valid').catch((error) => {
    console.log('refused:', error.code, error.message);
  });
  await db.end();
}

main(process.argv[2]);
