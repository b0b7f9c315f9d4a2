"""What runs inside of the store: each script one step that nobody can come between, on the store's own clock.

One key for each bucket: the microsecond at which it is full again, and the one at which that was written, so that a
clock that steps back is noticed. One hash for each holder with the places that each gateway has of it; they count for
as long as that gateway is in the sorted set of those that live, by the instant at which it is given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.admission.share import Ask, Claim, Reply, Word
from gateway.sharing.base import Call

_CLAIM: Final = """
-- KEYS: who lives, places of the holder, then each bucket
-- ARGV: this gateway, limit of places (0: none), places that it has, need, cost, more, ahead;
--       then for each bucket: limit, need, cost, more, ahead, microseconds by which it is empty at least
-- gives: places taken, places free; then for each bucket: units taken, microseconds until it is full; nothing is taken
--        where anything that is needed is not there
local MINUTE, SHY, DAY = 60000000, 8, 86400000
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
local refused = false

local function take(left, cost, more, ahead)
  left = left - cost
  local taken = math.max(0, math.min(more, math.floor(left)))
  left = left - taken
  taken = taken + math.max(0, math.min(ahead, math.floor(left / SHY)))
  return cost + taken
end

local me, places, mine = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local free = 0
if places > 0 then
  free = places - mine
  local held = redis.call('HGETALL', KEYS[2])
  for i = 1, #held, 2 do
    if held[i] ~= me then
      local ends = redis.call('ZSCORE', KEYS[1], held[i])
      if ends and tonumber(ends) * 1000 > now then
        free = free - tonumber(held[i + 1])
      else
        redis.call('HDEL', KEYS[2], held[i])
      end
    end
  end
  local need = tonumber(ARGV[4])
  if need > 0 and need > free then refused = true end
end

local buckets = {}
for i = 3, #KEYS do
  local at = 7 + (i - 3) * 6
  local bucket = {key = KEYS[i], limit = tonumber(ARGV[at + 1]), need = tonumber(ARGV[at + 2]),
    cost = tonumber(ARGV[at + 3]), more = tonumber(ARGV[at + 4]), ahead = tonumber(ARGV[at + 5]), full = now}
  local written = redis.call('GET', bucket.key)
  if written then
    local full, at_that = string.match(written, '^(%S+) (%S+)$')
    bucket.full = tonumber(full) - math.max(0, tonumber(at_that) - now)
  end
  bucket.full = math.max(bucket.full, now + tonumber(ARGV[at + 6]))
  local wait = bucket.full + bucket.need * MINUTE / bucket.limit - MINUTE - now
  if bucket.need > 0 and wait > 1 then refused = true end
  buckets[#buckets + 1] = bucket
end

local taken = 0
if places > 0 then
  if not refused then taken = take(free, math.max(0, tonumber(ARGV[5])), tonumber(ARGV[6]), tonumber(ARGV[7])) end
  if mine + taken > 0 then
    redis.call('HSET', KEYS[2], me, mine + taken)
    redis.call('PEXPIRE', KEYS[2], DAY)
  else
    redis.call('HDEL', KEYS[2], me)
  end
end
local reply = {taken, free - taken}
for _, bucket in ipairs(buckets) do
  local units = 0
  if not refused then
    local left = (MINUTE - (bucket.full - now)) * bucket.limit / MINUTE
    units = take(left, bucket.cost, bucket.more, bucket.ahead)
  end
  local full = bucket.full + units * MINUTE / bucket.limit
  if full > now then
    redis.call('SET', bucket.key, string.format('%.2f %.0f', full, now), 'PX', math.ceil((full - now) / 1000))
  else
    full = now
    redis.call('DEL', bucket.key)
  end
  reply[#reply + 1] = units
  reply[#reply + 1] = math.ceil(full - now)
end
return reply
"""

_LIVE: Final = """
-- KEYS: who lives;  ARGV: this gateway, milliseconds for which it counts from now
-- gives: 1 where it was not there before, how many live
local MOST = 120000
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
-- The clock stepped back: nobody lives for ever.
for _, who in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + MOST, '+inf')) do
  redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), who)
end
local new = redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
redis.call('PEXPIRE', KEYS[1], MOST)
return {new, redis.call('ZCARD', KEYS[1])}
"""

_LEAVE: Final = """
-- KEYS: who lives;  ARGV: this gateway
return {redis.call('ZREM', KEYS[1], ARGV[1])}
"""


def _key(prefix: str, what: str) -> str:
    return f"{{{prefix}}}:{what}"  # in braces: all of them in one slot of a cluster


def live_call(prefix: str, gateway: str, lease: float) -> Call:
    """A gateway's heartbeat, good for ``lease`` seconds: 1 where it did not live, and how many do."""
    return Call(_LIVE, (_key(prefix, "live"),), (gateway, round(lease * 1000)))


def leave_call(prefix: str, gateway: str) -> Call:
    """Its last word."""
    return Call(_LEAVE, (_key(prefix, "live"),), (gateway,))


def claim_call(prefix: str, gateway: str, holder: str, claim: Claim) -> Call:
    """GCRA on buckets of a minute (``gateway.admission.quota``), and places by lease, for one holder."""
    keys = [_key(prefix, "live"), _key(prefix, f"places:{holder}")]
    places = claim.places or Ask(0)
    arguments: list[str | int] = [gateway, places.limit, claim.held, places.need, places.cost]
    arguments += [places.more, places.ahead]
    for what, ask in (("requests", claim.requests), ("tokens", claim.tokens)):
        if ask is not None:
            keys.append(_key(prefix, f"{what}:{holder}:{ask.limit}"))
            arguments += [ask.limit, ask.need, ask.cost, ask.more, ask.ahead, round(ask.empty * 1e6)]
    return Call(_CLAIM, tuple(keys), tuple(arguments))


def claim_reply(claim: Claim, reply: Sequence[int]) -> Reply:
    """What the store said to ``claim``."""
    taken, free, *rest = reply
    buckets = (Word(units, full / 1e6) for units, full in zip(rest[::2], rest[1::2], strict=True))
    return Reply(
        None if claim.places is None else Word(taken, free),
        None if claim.requests is None else next(buckets),
        None if claim.tokens is None else next(buckets),
    )
