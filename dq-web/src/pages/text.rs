//! Page texts in English and Chinese.

use dq_core::LatenessCause;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lang {
    En,
    Zh,
}

impl Lang {
    /// Returns the request's language: `?lang=`, else `Accept-Language`.
    pub(super) fn of(query: Option<&str>, accept: Option<&str>) -> Self {
        match query {
            Some("zh") => return Self::Zh,
            Some("en") => return Self::En,
            _ => {}
        }
        // The first known language wins: browsers list them by preference.
        let languages = accept.unwrap_or_default().split(',');
        let codes = languages.filter_map(|language| language.trim().get(..2));
        let mut known = codes.filter_map(|code| match code.to_ascii_lowercase().as_str() {
            "zh" => Some(Self::Zh),
            "en" => Some(Self::En),
            _ => None,
        });
        known.next().unwrap_or(Self::En)
    }

    pub(super) const fn tag(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Zh => "zh",
        }
    }

    pub(super) const fn texts(self) -> &'static Texts {
        match self {
            Self::En => &EN,
            Self::Zh => &ZH,
        }
    }
}

macro_rules! texts {
    ($($name:ident: $en:literal, $zh:literal;)*) => {
        #[derive(Debug)]
        pub(super) struct Texts { $(pub(super) $name: &'static str,)* }
        static EN: Texts = Texts { $($name: $en,)* };
        static ZH: Texts = Texts { $($name: $zh,)* };

        impl Texts {
            pub(super) fn get(&self, name: &str) -> Option<&'static str> {
                match name {
                    $(stringify!($name) => Some(self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

texts! {
    action: "Action", "操作";
    all_states: "All", "全部";
    actions: "Actions", "操作";
    actor: "Actor", "操作者";
    all_done: "Nothing is dead. All is well.", "没有死信任务，一切正常。";
    ago_after: " ago", "前";
    ago_before: "", "";
    attempts: "Failed attempts", "失败次数";
    audit: "Audit", "审计";
    audit_note: "The last 100 writes of this process since it started. The process's log output has all of them (target dq::audit).", "本进程启动以来最近 100 次写操作；进程的日志输出（target dq::audit）包含全部。";
    back: "Back", "返回";
    cancel: "Cancel", "取消";
    cancel_all: "Cancel all that match…", "取消全部匹配…";
    check: "Check", "检查";
    check_runs: "The check takes longer than this page waits. Its result will be here in a moment.", "检查尚未完成，结果稍后显示在此页。";
    check_ok: "The store has no problem that you should know of.", "存储没有需要注意的问题。";
    claimed_by: "claimed by", "领取者";
    clear: "Clear", "清除";
    confirm: "Confirm", "确认";
    contains: "Payload contains", "载荷包含";
    count_incomplete: "at least", "至少";
    created: "Created", "创建时间";
    dead: "Dead", "死信";
    done_jobs: "Done", "完成";
    failed_runs: "Failed runs", "失败";
    last_day: "Last 24 hours", "最近 24 小时";
    last_one: "Last one", "最近一次";
    last_hour: "Last hour", "最近一小时";
    more_in_queues: "There may be more: the list of one queue has all.", "可能还有更多：单个队列的列表包含全部。";
    newest_first: "newest first", "最新的在前";
    not_watched: "not watched", "未统计";
    oldest_first: "the longest waiting first", "等待最久的在前";
    queues_not_announced: "more queues, left out of its announcement", "个队列未包含在其公告中";
    show_all: "Show all", "显示全部";
    small_queues_left_out: "queues with fewer jobs are left out", "个任务较少的队列未计入";
    soonest_first: "the next ones first", "最近到期的在前";
    troubled: "with problems", "个有问题";
    watched_since: "this server has watched since", "本服务统计始于";
    dead_jobs: "Dead jobs", "死信任务";
    delay_hint: "15m, 1h 30m, now, or 2027-01-31T10:00:00Z", "15m、1h 30m、now 或 2027-01-31T10:00:00Z";
    deliveries: "Claims", "领取次数";
    done_cancel: "The job is cancelled.", "任务已取消。";
    done_reschedule: "The job has a new due time.", "已更改到期时间。";
    done_run: "The job is due now.", "任务已立即到期。";
    done_replay: "The job is due now, with all of its attempts.", "任务已重放。";
    done_remove: "The job is removed.", "任务已移除。";
    done_pause: "The queue is paused.", "队列已暂停。";
    done_resume: "The queue runs again.", "队列已恢复。";
    done_purge: "The queue is empty, except for running jobs.", "队列已清空（运行中的任务除外）。";
    done_bulk: "Done. Jobs that could not change stay as they were, such as a dead job whose key a live job has.", "已完成。无法更改的任务保持原样，例如其键已被其他任务占用的死信。";
    due: "Due", "到期";
    due_from_now: "Scheduled jobs due in 24 hours", "24 小时内到期的已安排任务";
    duration: "Run time", "运行时间";
    empty_ended: "No ended job is remembered. How many the store remembers is the setting “history” of the queue.", "没有已结束任务的记录。记录多少由队列的 history 设置决定。";
    empty_all: "Nothing waits, runs or is dead.", "没有等待、运行中或死信任务。";
    empty_filter: "No job matches.", "没有匹配的任务。";
    empty_audit: "There has been no write yet.", "还没有写操作。";
    empty_find: "No job has this id or key. One that has ended is found only while the store remembers it.", "没有此标识或键的任务。已结束的任务仅在存储仍有记录时可查到。";
    empty_jobs: "No job is in this state.", "没有此状态的任务。";
    empty_queue_filter: "No queue has this in its name.", "没有名称包含此文本的队列。";
    empty_queues: "There is no queue yet. One appears with its first job, or its first runner.", "还没有队列；有了第一个任务或执行器就会出现。";
    empty_runners: "No runner is known here.", "此处没有已知的执行器。";
    ended: "History", "历史";
    error: "Error", "错误";
    error_contains: "Error contains", "错误包含";
    ev_claimed: "Claimed", "被领取";
    ev_dead: "Dead", "进入死信";
    ev_due: "Due", "到期";
    ev_ended: "Ended", "结束";
    end_done: "done", "完成";
    end_skipped: "skipped", "跳过";
    end_cancelled: "cancelled", "已取消";
    end_replaced: "replaced", "已被替换";
    end_removed: "removed", "已移除";
    ev_failed: "Failed", "失败";
    ev_lost: "Lost: the runner crashed or lost the store", "丢失：执行器崩溃或与存储断开";
    ev_scheduled: "Scheduled", "已安排";
    filter: "Filter", "筛选";
    find: "Id or beginning of the key", "标识或键前缀";
    find_everywhere: "Search all queues and states", "在全部队列和状态中查找";
    find_job: "Find a job: id or key", "查找任务：标识或键";
    find_queue: "Find a queue", "查找队列";
    first_page: "First page", "第一页";
    headers: "Headers", "消息头";
    hidden: "Your role does not show payloads and headers.", "您的角色无权查看载荷和消息头。";
    history_none: "The payload has left the store with the job.", "载荷已随任务离开存储。";
    id: "Id", "标识";
    in_after: "", "后";
    in_before: "in ", "";
    interrupted: "interrupted", "中断";
    job: "Job", "任务";
    jobs: "Jobs", "任务";
    key: "Key", "键";
    late: "Lateness", "延迟";
    lateness: "Lateness p99", "延迟 p99";
    last_minutes: "last five minutes", "最近五分钟";
    listen: "runners listen", "个执行器在监听";
    listens: "runner listens", "个执行器在监听";
    listens_none: "no runner listens", "没有执行器在监听";
    live: "live", "实时";
    matching: "jobs match", "个任务匹配";
    matching_one: "job matches", "个任务匹配";
    main: "Main navigation", "主导航";
    max: "of", "／共";
    more_than_group: "Other errors contain this text too: these are more jobs than the group, which has", "其他错误也包含此文本，任务数超过该组，该组有";
    more: "Next page", "下一页";
    reschedule: "Move", "改期";
    move_all: "Move all that match…", "批量改期…";
    move_to: "New due time", "新的到期时间";
    next_due: "Next due", "最近到期";
    not_known: "not known", "未知";
    now: "now", "现在";
    nothing_matches: "No job matches now: there is nothing to change.", "没有匹配的任务，无需更改。";
    of_slots: "slots free", "个槽位空闲";
    oldest: "oldest waits", "最久等待";
    outcome: "Result", "结果";
    overview: "Overview", "概览";
    p50: "p50", "p50";
    p99: "p99", "p99";
    pause: "Pause", "暂停";
    paused: "paused", "已暂停";
    payload: "Payload", "载荷";
    per_minute: "Runs/min", "次/分";
    problem: "This did not work", "操作未成功";
    purge: "Purge…", "清空…";
    purge_do: "Delete all jobs", "删除全部任务";
    purge_note: "This deletes every job of the queue that is not running, dead ones included. Type the name of the queue to confirm.", "将删除该队列中所有未在运行的任务（包括死信）。请输入队列名称以确认。";
    queue: "Queue", "队列";
    queues: "Queues", "队列";
    ready: "Ready", "就绪";
    reason: "Reason", "原因";
    remedy: "What to do", "解决办法";
    remove: "Remove", "移除";
    remove_all: "Remove all that match…", "移除全部匹配…";
    replay: "Replay", "重放";
    replay_all: "Replay all that match…", "重放全部匹配…";
    resume: "Resume", "恢复";
    run_now: "Run now", "立即运行";
    runners: "Runners", "执行器";
    running: "Running", "运行中";
    scheduled: "Scheduled", "已安排";
    seen: "Last seen", "最近心跳";
    skew: "Clock skew", "时钟偏差";
    skip: "Skip to the content", "跳到正文";
    slots: "Slots", "槽位";
    started: "Started", "启动时间";
    states: "Jobs by state", "各状态任务";
    stopping: "stopping", "正在停止";
    target: "Target", "对象";
    time: "Time", "时间";
    timeline: "Timeline", "时间线";
    total_created: "Stored since the beginning", "累计创建";
    total_done: "Done since the beginning", "累计完成";
    truncated: "only the beginning is shown", "仅显示开头";
    wait_claimable: "It is due, and a runner has a free slot: it is about to start, unless that runner was killed in the last minute.", "已到期且有空闲槽位，即将开始，除非该运行器在最近一分钟内被强行终止。";
    wait_dead: "It is dead, and waits for an operator.", "已进入死信，等待人工处理。";
    wait_no_runner: "It is due, but no runner listens to its queue.", "已到期，但没有执行器监听此队列。";
    wait_no_slot: "It is due, but all runners of its queue are busy.", "已到期，但执行器的槽位全部占用。";
    wait_not_due: "It is not due yet:", "尚未到期：";
    wait_group: "It is due, but as many jobs of its group run as may at once:", "已到期，但所在分组运行中的任务已达上限：";
    wait_paused: "It is due, but its queue is paused.", "已到期，但队列已暂停。";
    wait_running: "It runs", "正在运行";
    wait_unknown: "It is due. It is not known whether a runner with a free slot listens.", "已到期；是否有空闲槽位的执行器监听未知。";
    worker: "Runner", "执行器";
    workers: "Workers", "工作进程";
    you_are: "You are", "当前用户";
    objective: "Lateness objective", "延迟目标";
    objective_met: "met", "已达成";
    objective_missed: "objective missed", "未达延迟目标";
    in_time: "in time", "准时";
    started_late: "late", "迟到";
    wait_late: "waiting late", "逾期等待";
    cause_paused: "the queue is paused", "队列已暂停";
    cause_no_runner: "no runner serves the queue", "没有执行器服务此队列";
    cause_max_running: "as many jobs run as max_running allows", "运行中的任务已达 max_running";
    cause_rate: "the rate of the queue lets no job start", "队列的启动速率已用尽";
    cause_throttled: "a handler has throttled the queue", "处理器已对队列限流";
    cause_group_full: "the groups of the jobs are full", "任务所在的分组已满";
    cause_slots_full: "all slots are busy", "槽位全部占用";
    cause_handlers_slow: "all slots are busy, and the handlers are slow", "槽位全部占用，且处理器较慢";
    cause_store_slow: "the store is slow", "存储响应慢";
    cause_clock_skew: "the clocks of a runner and of the store differ", "执行器与存储的时钟不一致";
    cause_unknown: "the cause was not observed", "未观察到原因";
    all_queues: "All queues", "全部队列";
    backfill: "Run missed occurrences…", "补运行…";
    backfill_after: "After", "晚于";
    backfill_do: "Run them now", "立即补运行";
    backfill_note: "Schedules past occurrences, all due now, at most 1,000. An occurrence whose job the store still remembers does not run again.", "将过去某段时间内的各次运行立即安排，最多 1,000 次；存储仍记得的不会再次运行。";
    backfill_until: "Until", "不晚于";
    capacity: "Capacity per minute", "每分钟处理能力";
    catch_up: "Missed occurrences", "错过的运行";
    catch_up_all: "run, at most", "补运行，最多次数";
    catch_up_last: "the last one runs", "补运行最后一次";
    catch_up_none: "do not run", "不补运行";
    day: "day", "天";
    days: "days", "天";
    deadline: "May be late by", "最多可晚";
    dead_exhausted: "out of attempts", "尝试次数用尽";
    dead_late: "too late", "太晚";
    dead_lost: "leases lost", "租约多次丢失";
    dead_quarantined: "quarantined", "已隔离";
    dead_rejected: "rejected", "被拒绝";
    dead_undecodable: "undecodable", "无法解码";
    declared: "declared by a program", "由程序声明";
    done_schedule_backfill: "The occurrences are due now.", "已补安排。";
    done_schedule_kept: "Nothing is scheduled: a job of this schedule waits or runs.", "未安排：该计划已有任务在等待或运行。";
    done_schedule_no_backfill: "That time has no occurrence to run.", "这段时间内没有需要补运行的。";
    done_schedule_pause: "The schedule is paused.", "计划已暂停。";
    done_schedule_remove: "The schedule is removed.", "计划已移除。";
    done_schedule_resume: "The schedule goes on with its next occurrence.", "计划已恢复，从下一次开始。";
    done_schedule_run: "A job of the schedule is due now.", "该计划的一个任务已立即到期。";
    done_schedule_skip: "The next occurrence is left out.", "已跳过下一次。";
    drained: "Drained", "处理完";
    empty_forecast: "No job is due in this time.", "这段时间内没有任务到期。";
    empty_schedules: "There is no schedule. A program declares one with a handler, or in its configuration.", "还没有计划；程序可在处理器或配置中声明。";
    every: "every", "每";
    forecast: "Forecast", "预测";
    forecast_note: "Waiting jobs and occurrences of schedules by the hour in which they are due, in UTC.", "按到期小时（UTC）统计的等待任务和计划的各次运行。";
    hidden_payload: "Your role does not show payloads.", "您的角色无权查看载荷。";
    jitter: "Spread over", "分散于";
    jobs_at_once: "Jobs at once", "同时运行的任务数";
    left_over: "left over", "未处理";
    made_by_call: "made by a call", "由调用创建";
    next_times: "Next times", "接下来的时间";
    no_next: "There is no next time.", "没有下一次。";
    origin: "Origin", "来源";
    orphaned: "orphaned", "无人声明";
    over_note: "More is due than the runners can do.", "到期任务多于执行器的处理能力。";
    outcome_unknown: "There was no answer: the change may have taken effect", "没有收到结果：更改可能已生效";
    overdue: "Due already", "已到期";
    overlap: "Overlap", "重叠时";
    overlap_allow: "runs beside an earlier job", "与前一任务并行";
    overlap_queue_one: "waits for the earlier job", "等待前一任务结束";
    overlap_skip: "skipped while an earlier job is live", "前一任务未结束则跳过";
    peak: "Busiest minute", "最忙的一分钟";
    refused: "The change was refused", "更改被拒绝";
    remove_schedule: "Remove…", "移除…";
    remove_schedule_do: "Remove the schedule", "移除计划";
    remove_schedule_note: "Jobs of earlier occurrences still run. A schedule that a program declares is back when that program starts again: pause it instead.", "已产生的任务仍会运行。由程序声明的计划会在程序重启后恢复：请改用暂停。";
    schedule: "Schedule", "计划";
    schedule_orphaned: "No process has declared this schedule for three hours. It stops after a day.", "已有三小时没有进程声明此计划；满一天后停止。";
    schedule_paused: "This schedule is paused. Occurrences during the pause are not caught up.", "此计划已暂停；暂停期间的各次不会补运行。";
    schedule_stopped: "This schedule has stopped: no process has declared it for a day. It goes on when one does.", "此计划已停止：一天内没有进程声明它；再次声明后继续。";
    schedules: "Schedules", "计划";
    schema_version: "Version of the payload", "载荷版本";
    severity_error: "error", "错误";
    severity_info: "info", "提示";
    severity_warning: "warning", "警告";
    skip_next: "Skip next", "跳过下一次";
    stopped: "stopped", "已停止";
    times: "Times", "时间";
    at_once: "at once", "个同时运行";
    change_limits: "Change the limits…", "更改限制…";
    done_limit: "The limits are set, for all processes.", "已设置限制，对所有进程生效。";
    done_unlimit: "The limits that the runners declare count again.", "已恢复执行器声明的限制。";
    each_group: "Of each group", "每个分组";
    group_jobs_at_once: "Jobs of each group at once", "每个分组同时运行的任务数";
    group: "Group", "分组";
    groups_not_counted: "The limits of groups are not counted: jobs of full groups start later.", "未计入分组限制：分组已满的任务会更晚开始。";
    limits: "Limits", "限制";
    limits_note: "For all processes, in place of the limits that the runners declare. An empty field is no limit.", "对所有进程生效，取代执行器声明的限制；留空表示不限制。";
    next_start: "next start", "下次启动";
    no_group_waits: "No job of a group waits.", "没有分组任务在等待。";
    of_the_first: "Of the first", "仅统计最早的";
    oldest_due: "Oldest due", "最早到期";
    opens: "opens", "恢复于";
    rate: "Rate", "启动速率";
    ready_jobs: "ready jobs", "个就绪任务";
    set_by_operator: "set by an operator", "由操作员设置";
    set_limits: "Set", "设置";
    throttled: "throttled", "已限流";
    use_declared: "Use the declared limits", "恢复声明的限制";
    waiting_groups: "Groups that wait longest", "等待最久的分组";
    window: "Time window", "时间范围";
}

impl Texts {
    /// Finds the text of a group's member, such as the severity `error`. A name from a later
    /// version stands for itself.
    pub(super) fn of<'a>(&self, group: &str, name: &'a str) -> &'a str {
        self.get(&format!("{group}_{name}")).unwrap_or(name)
    }

    pub(super) fn lateness_cause(&self, cause: Option<LatenessCause>) -> &'static str {
        let known = cause.and_then(|cause| self.get(&format!("cause_{}", cause.as_str())));
        known.unwrap_or(self.cause_unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_is_stronger_than_the_browser() {
        assert_eq!(Lang::of(None, Some("zh-CN,zh;q=0.9,en;q=0.8")), Lang::Zh);
        assert_eq!(Lang::of(Some("en"), Some("zh-CN")), Lang::En);
        assert_eq!(Lang::of(None, Some("de-DE, en;q=0.5, zh;q=0.1")), Lang::En);
        assert_eq!(Lang::of(Some("xx"), Some("日本語")), Lang::En);
        assert_eq!(Lang::of(None, None), Lang::En);
    }
}
