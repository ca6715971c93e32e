--[[
slurmctld's job_submit/lua plugin: what the site allows of csub's token in a job's comment.

The token, for example "[csub/1 mps]", stands at the end of the comment and asks the node's prolog
for MPS (hooks/README.md). This file is optional: nodes judge every token by their own policy. It
lets the controller take a token out, refuse the job, or add one.

Put it next to slurm.conf, set JobSubmitPlugins=lua there, and restart slurmctld. A site that has a
job_submit.lua takes over all but the last two functions and calls `csub_check` in its own, which
says whether the job is to be refused. A fault in here lets the job pass as it is.
--]]

local site = {
    -- false: every comment is left as it is.
    enabled = true,
    -- Modes that may be asked for: "mps", "off" and "mig".
    modes = { "mps", "off" },
    -- Partitions and accounts that may ask; empty: all.
    partitions = {},
    accounts = {},
    -- What becomes of a token that is not allowed: "strip" (the job runs without it) or "refuse".
    not_allowed = "strip",
    -- And of what only looks like a token: "keep" (nothing reads it), "strip" or "refuse".
    malformed = "keep",
    -- Tokens for jobs that come without one, by partition: { ["shared-gpu"] = "mps" }.
    add = {},
}

local LONGEST = 1024

-- "mig=" and one to seven words of a layout: 3g, 1g.20gb, 1g.10gb+me, 3c.7g.
local function is_mig(mode)
    local layout = mode:match("^mig=(.+)$")
    if layout == nil then
        return false
    end
    local count = 0
    layout = layout .. "+"
    while layout ~= "" do
        count = count + 1
        local word, rest = layout:match("^([^+]*)%+(.*)$")
        word = word:gsub("^[123467]c%.", "")
        if word:sub(-3) == "-me" then
            word = word:sub(1, -4)
        else
            for _, attribute in ipairs({ "me.all+", "me+", "gfx+" }) do
                if rest:sub(1, #attribute) == attribute then
                    rest = rest:sub(#attribute + 1)
                    break
                end
            end
        end
        local memory = word:match("^[12347]g(.*)$")
        if
            count > 7
            or not (
                memory == ""
                or memory ~= nil and memory:match("^%.[1-9]%d?%d?gb$") ~= nil
            )
        then
            return false
        end
        layout = rest
    end
    return true
end

-- The comment without its token and the mode asked for; nothing where there is no token.
local function read_token(comment)
    if #comment > LONGEST then
        return nil
    end
    local before, words = comment:match("^(.-)%[csub/1 ([^%[%]]*)%]$")
    if before == nil or not (before == "" or before:sub(-1) == " ") then
        return nil
    end
    -- Watts of two to four digits.
    local mode = words:gsub(" power=[1-9]%d%d?%d?$", ""):gsub(" gpus=each$", "")
    if is_mig(mode) then
        mode = "mig"
    elseif mode ~= "mps" and mode ~= "off" then
        return nil
    end
    return before:gsub(" $", ""), mode
end

local function holds(list, name)
    for _, entry in ipairs(list) do
        if entry == name then
            return true
        end
    end
    return false
end

-- Every partition that a job names must be allowed: it may start in any of them.
local function are_allowed(partitions)
    if #site.partitions == 0 then
        return true
    end
    local any = false
    for name in partitions:gmatch("[^,]+") do
        any = true
        if not holds(site.partitions, name) then
            return false
        end
    end
    return any
end

local function explain_refusal(mode, partitions, account)
    if not holds(site.modes, mode) then
        return "mode " .. mode .. " is not allowed here"
    elseif not are_allowed(partitions) then
        return "partition " .. partitions .. " may not ask for it"
    elseif #site.accounts > 0 and not holds(site.accounts, account) then
        return "account " .. account .. " may not ask for it"
    end
    return nil
end

-- What becomes of a comment: the comment, and why the job is refused or nil.
local function judge(comment, partitions, account)
    local rest, mode = read_token(comment)
    if mode ~= nil then
        local reason = explain_refusal(mode, partitions, account)
        if reason == nil then
            return comment, nil
        elseif site.not_allowed == "refuse" then
            return comment, reason
        end
        return rest, nil
    end
    local before = comment:match("^(.*)%[csub/[^%[%]]*%]%s*$")
    if before ~= nil and site.malformed == "strip" then
        return before:gsub("%s+$", ""), nil
    elseif before ~= nil and site.malformed == "refuse" then
        return comment, "the comment ends in something that only looks like a token of csub"
    end
    return comment, nil
end

local function add_token(comment, partitions)
    local mode = site.add[partitions]
    if mode == nil or read_token(comment) ~= nil then
        return comment
    end
    local token = "[csub/1 " .. mode .. "]"
    local longer = comment == "" and token or comment .. " " .. token
    return #longer <= LONGEST and longer or comment
end

local function find_default_partition(part_list)
    for name, part in pairs(part_list or {}) do
        if part.flag_default == 1 then
            return part.name or name
        end
    end
    return ""
end

-- Check the comment of a job that is submitted (job_rec is nil) or changed; true: refuse the job.
function csub_check(job_desc, job_rec, part_list, uid)
    local comment = job_desc.comment
    if not site.enabled or (job_rec ~= nil and comment == nil) then
        return false
    end
    local known = job_rec or {}
    local partitions = job_desc.partition or known.partition or find_default_partition(part_list)
    local account = job_desc.account or known.account or job_desc.default_account or ""
    local judged, reason = judge(comment or "", partitions, account)
    if reason ~= nil then
        slurm.log_info("csub: a token in the comment of uid %s is refused: %s", tostring(uid), reason)
        slurm.log_user("csub: the token in --comment is refused: %s", reason)
        return true
    end
    if job_rec == nil then
        judged = add_token(judged, partitions)
    end
    if judged ~= (comment or "") then
        job_desc.comment = judged
    end
    return false
end

local function run(...)
    local ok, refused = pcall(csub_check, ...)
    if not ok then
        slurm.log_error("csub: job_submit.lua: %s", tostring(refused))
    end
    return (ok and refused) and slurm.ERROR or slurm.SUCCESS
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    return run(job_desc, nil, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return run(job_desc, job_rec, part_list, modify_uid)
end

return slurm.SUCCESS
