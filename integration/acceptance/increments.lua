-- A sysbench workload whose result does not depend on the order in which its threads ran: every
-- thread makes a fixed number of transactions (events / threads, the first few one more), and all
-- they do is add to columns. --rand-seed chooses the rows. Rows of a transaction are taken in
-- ascending order, so that no two transactions wait for each other in a circle.
--
--   sysbench increments.lua --threads=64 --events=640 --time=0 ... run
--
-- Or every thread goes on until a file appears, and adds to FILE.counts how often it did it; another
-- run takes the counts from there and does the same:
--
--   sysbench increments.lua --threads=4 --until=FILE ... run
--   sysbench increments.lua --threads=4 --counts=FILE.counts ... run
--
-- With --pause a thread leaves the processors to others after each transaction.

local ffi = require("ffi")
ffi.cdef("int usleep(unsigned microseconds);")

sysbench.cmdline.options = {
  tables = {"Number of tables", 1},
  table_size = {"Rows per table", 10000},
  rows = {"Rows per transaction", 4},
  ["until"] = {"Go on until there is this file", ""},
  counts = {"How often each thread shall, as --until has left it", ""},
  pause = {"Milliseconds between the transactions of a thread", 0},
}

-- The product of the two small factors stays below 2^53, where Lua's numbers are whole.
local function scramble(number)
  return (number * 69069 + 12345) % 4294967296
end

function thread_init()
  connection = sysbench.sql.driver():connect()
end

function thread_done()
  connection:disconnect()
end

local function transaction(thread, number)
  local mixed = scramble(scramble(thread + 1000 * number + 7919 * seed))
  local span = math.floor(sysbench.opt.table_size / sysbench.opt.rows)
  local table_name = "sbtest" .. (mixed % sysbench.opt.tables + 1)
  connection:query("BEGIN")
  for row = 1, sysbench.opt.rows do
    mixed = scramble(mixed)
    local id = (row - 1) * span + math.floor(mixed / 65536) % span + 1
    connection:query(string.format("UPDATE %s SET k = k + %d WHERE id = %d", table_name, row, id))
    connection:query(string.format("SELECT c, pad FROM %s WHERE id = %d", table_name, id))
  end
  connection:query("COMMIT")
end

function event()
end

local function exists(name)
  local file = io.open(name)
  if file then
    file:close()
  end
  return file ~= nil
end

local function share_of(thread)
  if sysbench.opt.counts ~= "" then
    for line in io.lines(sysbench.opt.counts) do
      local known, count = line:match("^(%d+) (%d+)$")
      if tonumber(known) == thread then
        return tonumber(count)
      end
    end
    error("no count of thread " .. thread .. " in " .. sysbench.opt.counts)
  end
  local threads = sysbench.opt.threads
  local count = math.floor(sysbench.opt.events / threads)
  if thread < sysbench.opt.events % threads then
    count = count + 1
  end
  return count
end

function thread_run(thread)
  seed = sysbench.opt.rand_seed or 1
  local stop = sysbench.opt["until"]
  local count = stop == "" and share_of(thread) or math.huge
  local number = 0
  while number < count and not (stop ~= "" and exists(stop)) do
    number = number + 1
    ffi.C.sb_event_start(thread)
    transaction(thread, number)
    ffi.C.sb_event_stop(thread)
    if sysbench.opt.pause > 0 then
      ffi.C.usleep(1000 * sysbench.opt.pause)
    end
  end
  if stop ~= "" then
    local file = assert(io.open(stop .. ".counts", "a"))
    file:write(string.format("%d %d\n", thread, number))
    file:close()
  end
end
