/* The protocol of pipelines/credits/credits.hpp for spin: actors, registers with a quota, requests and acknowledgements that arrive
 * late, in every possible order of steps. check_model.py runs it for each shape, number of actors and quota.
 *
 *   -DACTORS=2..4    in a line; -DDIAMOND: four actors, the first one's tensors go to two, whose go to the last
 *   -DQUOTA=1..3     slots of each register
 *   -DTENSORS=n      that each actor makes or reads
 *
 * A deadlock is an invalid end state. Assertions: nobody writes to a slot that is read; every consumer reads each
 * tensor once and in order; counters stay within the quota. */
#define NONE 255

#ifdef DIAMOND
#define ACTORS 4
#define REGISTERS 3
#define EDGES 4
#else
#define REGISTERS (ACTORS - 1)
#define EDGES (ACTORS - 1)
#endif
#define SLOTS (REGISTERS * QUOTA)

/* An edge is one consumer of one register. */
chan request[EDGES] = [QUOTA] of { byte };
chan ready[EDGES] = [QUOTA] of { byte };             /* its length is the in counter */
chan acknowledgement[REGISTERS] = [QUOTA + QUOTA] of { byte };
chan free[REGISTERS] = [QUOTA] of { byte };          /* its length is the out counter */
byte reference[SLOTS];
byte contents[SLOTS];

#define AT(reg, slot) ((reg) * QUOTA + (slot))

/* Reads the edges in1 and in2 (of the registers reg1 and reg2), writes register out, which the edges to1 and to2
 * read. */
proctype actor(byte in1; byte reg1; byte in2; byte reg2; byte out; byte to1; byte to2) {
  byte round = 0;
  byte slot, read1, read2, written;
  do
  :: atomic { in1 != NONE && nempty(request[in1]) -> request[in1]?slot; ready[in1]!slot }
  :: atomic { in2 != NONE && nempty(request[in2]) -> request[in2]?slot; ready[in2]!slot }
  :: atomic {
       out != NONE && nempty(acknowledgement[out]) ->
       acknowledgement[out]?slot;
       assert(reference[AT(out, slot)] > 0);
       reference[AT(out, slot)]--;
       if
       :: reference[AT(out, slot)] == 0 -> assert(nfull(free[out])); free[out]!slot
       :: else
       fi
     }
  :: atomic {
       round < TENSORS &&
       (in1 == NONE || nempty(ready[in1])) &&
       (in2 == NONE || nempty(ready[in2])) &&
       (out == NONE || nempty(free[out])) ->
       if :: in1 != NONE -> ready[in1]?read1 :: else fi;
       if :: in2 != NONE -> ready[in2]?read2 :: else fi;
       if :: out != NONE -> free[out]?written; assert(reference[AT(out, written)] == 0) :: else fi
     };
     /* The action: it writes and reads while others act. */
     if
     :: out != NONE -> contents[AT(out, written)] = round
     :: else
     fi;
     if
     :: in1 != NONE -> assert(contents[AT(reg1, read1)] == round)
     :: else
     fi;
     if
     :: in2 != NONE -> assert(contents[AT(reg2, read2)] == round)
     :: else
     fi;
     /* Its messages go out one by one. */
     if
     :: out != NONE ->
        reference[AT(out, written)] = (to2 == NONE -> 1 : 2);
        request[to1]!written;
        if :: to2 != NONE -> request[to2]!written :: else fi
     :: else
     fi;
     if :: in1 != NONE -> acknowledgement[reg1]!read1 :: else fi;
     if :: in2 != NONE -> acknowledgement[reg2]!read2 :: else fi;
     round++
  :: round == TENSORS && (out == NONE || len(free[out]) == QUOTA) -> break
  od
}

init {
  byte reg, slot;
  atomic {
    for (reg : 0 .. REGISTERS - 1) {
      for (slot : 0 .. QUOTA - 1) {
        free[reg]!slot
      }
    };
#ifdef DIAMOND
    run actor(NONE, NONE, NONE, NONE, 0, 0, 1);
    run actor(0, 0, NONE, NONE, 1, 2, NONE);
    run actor(1, 0, NONE, NONE, 2, 3, NONE);
    run actor(2, 1, 3, 2, NONE, NONE, NONE)
#else
    run actor(NONE, NONE, NONE, NONE, 0, 0, NONE);
#if ACTORS > 2
    run actor(0, 0, NONE, NONE, 1, 1, NONE);
#endif
#if ACTORS > 3
    run actor(1, 1, NONE, NONE, 2, 2, NONE);
#endif
    run actor(ACTORS - 2, ACTORS - 2, NONE, NONE, NONE, NONE, NONE)
#endif
  }
}
