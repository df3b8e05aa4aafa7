-- The commands that scripts run for limits, besides the other native ones.
for _, command in ipairs({
  { 'ZLEXCOUNT', zset, '-', '+' }, { 'HSCAN', hash, 0 }, { 'PERSIST', zset },
}) do
  wanted[#wanted + 1] = command
end
