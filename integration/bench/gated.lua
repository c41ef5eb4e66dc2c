-- One of sysbench's OLTP workloads with a gate between its connections and its measurement. It is
-- run by gate.py, which says what the gate is for.
--
--   each thread:  connect ─▶ "gate: connected" ─▶ SELECT, SELECT, ... until $OLTP_GATE/close exists
--                 ─▶ "gate: N statements" ─▶ wait at the FIFO $OLTP_GATE/open ─▶ sysbench's clock
--
-- sysbench starts its clock when all threads have returned from thread_init. The statements here
-- draw no random numbers: those that follow are the ones that the seed gives without a gate, too.

local gate = assert(os.getenv("OLTP_GATE"), "OLTP_GATE is not set: gate.py runs this script")
require(assert(os.getenv("OLTP_WORKLOAD"), "OLTP_WORKLOAD is not set: gate.py runs this script"))

local connect = thread_init

local function say(words)
   io.write("gate: " .. words .. "\n") -- in one piece, as the threads share the output
   io.flush()
end

local function exists(path)
   local file = io.open(path)
   if file then
      file:close()
   end
   return file ~= nil
end

-- A load of no fixed length: each thread ends with a transaction, once there is this file.
local ending = os.getenv("OLTP_END")
if ending then
   local work = event
   function event(...)
      work(...)
      return exists(ending)
   end
end

function thread_init()
   connect()
   say("connected")
   local statements = 0
   repeat
      con:query("SELECT c FROM sbtest1 WHERE id = " .. statements % sysbench.opt.table_size + 1)
      statements = statements + 1
   until exists(gate .. "/close")
   say(statements .. " statements")
   assert(io.open(gate .. "/open")):close() -- returns once gate.py has opened the other end
end
