-- A sysbench workload whose result does not depend on the order in which its threads ran: every
-- thread makes a fixed number of transactions (events / threads, the first few one more), and all
-- they do is add to columns. --rand-seed chooses the rows. Rows of a transaction are taken in
-- ascending order, so that no two transactions wait for each other in a circle.
--
--   sysbench increments.lua --threads=64 --events=640 --time=0 ... run

local ffi = require("ffi")

sysbench.cmdline.options = {
  tables = {"Number of tables", 1},
  table_size = {"Rows per table", 10000},
  rows = {"Rows per transaction", 4},
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

function thread_run(thread)
  seed = sysbench.opt.rand_seed or 1
  local threads = sysbench.opt.threads
  local count = math.floor(sysbench.opt.events / threads)
  if thread < sysbench.opt.events % threads then
    count = count + 1
  end
  for number = 1, count do
    ffi.C.sb_event_start(thread)
    transaction(thread, number)
    ffi.C.sb_event_stop(thread)
  end
end
