-- Reads ARGV from front to back, after the caller's time, installation and generation. A list is its length followed by
-- its items.

local position = 3

local function text()
  position = position + 1
  return ARGV[position]
end

local function number()
  return tonumber(text())
end

local function more()
  return position < #ARGV
end

local function list(read)
  local items = {}
  for index = 1, number() do
    items[index] = read()
  end
  return items
end
