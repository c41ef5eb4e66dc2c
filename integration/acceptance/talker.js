// A small program that knows nothing of Ringroad: HTTP/1.1, HTTP/2 and plain sockets, by node.
//
//   talker.js serve PORT PORT2 PORT3   serves the three on 127.0.0.1
//   talker.js ask PORT PORT2 PORT3     asks each for everything; prints what was answered, as JSON

'use strict';
const child_process = require('child_process');
const crypto = require('crypto');
const http = require('http');
const http2 = require('http2');
const net = require('net');

const HOST = '127.0.0.1';
const digest = (data) => crypto.createHash('sha256').update(data).digest('hex');
const body = (seed, size) => {
  const block = Buffer.from(digest(`${seed}`).repeat(64));
  return Buffer.alloc(size, block);
};

function serve([port, port2, port3]) {
  const answer = (request, response) => {
    const words = request.url.split('/');
    const seen = crypto.createHash('sha256');
    if (words[1] === 'echo') {
      request.pipe(response);
    } else if (words[1] === 'helper') {
      child_process.execFile('/bin/echo', ['helped'],
        (error, out) => response.end(error ? 'no' : out));
    } else if (words[1] === 'take') {
      request.on('data', (part) => seen.update(part));
      request.on('end', () => response.end(seen.digest('hex')));
    } else if (words[1] === 'break') {
      response.write(body(1, 100000), () => request.socket.destroy());
    } else {
      response.end(body(words[1], Number(words[2])));
    }
  };
  http.createServer({ keepAliveTimeout: 60000 }, answer).listen(Number(port), HOST);
  http2.createServer(answer).listen(Number(port2), HOST);
  // Says what it has read once the peer has ended its half; "reset" in the first bytes is an order.
  net.createServer({ allowHalfOpen: true }, (socket) => {
    const seen = crypto.createHash('sha256');
    let bytes = 0;
    socket.on('error', () => {});
    socket.on('data', (part) => {
      if (bytes === 0 && part.toString().startsWith('reset')) socket.resetAndDestroy();
      bytes += part.length;
      seen.update(part);
    });
    socket.on('end', () => socket.end(`${bytes} ${seen.digest('hex')}`));
  }).listen(Number(port3), HOST);
}

const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });

function get(port, path, sent) {
  return new Promise((resolve) => {
    const options = { host: HOST, port, path, agent, method: sent === undefined ? 'GET' : 'POST' };
    let kept;
    const request = http.request(options, (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('error', (error) => resolve([path, error.code, Buffer.concat(parts).length]));
      response.on('end', () => {
        kept = agent.keepAlive && response.headers.connection;
        const whole = Buffer.concat(parts);
        resolve([path, response.statusCode, kept, whole.length, digest(whole)]);
      });
    });
    request.on('error', (error) => resolve([path, error.code]));
    request.end(sent);
  });
}

function get2(session, path, sent) {
  return new Promise((resolve) => {
    const stream = session.request({ ':path': path, ':method': sent ? 'POST' : 'GET' });
    const parts = [];
    let status;
    stream.on('response', (headers) => { status = headers[':status']; });
    stream.on('data', (part) => parts.push(part));
    stream.on('error', (error) => resolve([path, error.code]));
    stream.on('end', () => resolve([path, status, digest(Buffer.concat(parts))]));
    stream.end(sent);
  });
}

// Sends, ends its half, and then hears; or says how the connection broke.
function half(port, sent) {
  return new Promise((resolve) => {
    const socket = net.connect({ port, host: HOST, allowHalfOpen: true });
    let said = '';
    socket.setNoDelay(true);
    socket.on('connect', () => {
      // Some calls of several sizes before the large one, so that the kernel's part is over.
      for (let at = 0; at < 20; at++) socket.write(body(at, at * 100));
      socket.end(sent);
    });
    socket.on('data', (part) => { said += part; });
    socket.on('end', () => resolve(['said', said]));
    socket.on('error', (error) => resolve(['broke', error.code]));
  });
}

function order(port) {
  return new Promise((resolve) => {
    const socket = net.connect({ port, host: HOST }, () => socket.write('reset'));
    socket.on('error', (error) => resolve(error.code));
    socket.on('end', () => resolve('end'));
    socket.resume();
  });
}

async function ask([port, port2, port3]) {
  const said = [];
  const several = [];
  for (let at = 0; at < 200; at++) {
    several.push(at % 3 === 0 ? get(port, '/echo', body(at, at * 211))
      : get(port, `/${at}/${at * 307}`));
  }
  several.push(get(port, '/take', body('large', 12000000)), get(port, '/large/12000000'));
  said.push(...await Promise.all(several));
  said.push(await get(port, '/helper'), await get(port, '/7/70000'), await get(port, '/break'));
  said.push(await get(port, '/8/80000'));
  agent.destroy();
  const session = http2.connect(`http://${HOST}:${port2}`);
  const streams = [];
  for (let at = 0; at < 60; at++) {
    streams.push(at % 2 ? get2(session, '/echo', body(at, at * 3001 + 1))
      : get2(session, `/${at}/${at * 5003}`));
  }
  said.push(...await Promise.all(streams));
  session.close();
  const halves = [0, 1, 100000, 9000000].map((size) => half(port3, body(size, size)));
  said.push(...await Promise.all(halves));
  said.push(await order(port3));
  console.log(JSON.stringify(said));
}

({ serve, ask })[process.argv[2]](process.argv.slice(3));
