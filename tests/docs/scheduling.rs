//! Guide: scheduling and keys.

use dq::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Meeting {
    id: u64,
    start: Timestamp,
    is_called_off: bool,
}

#[derive(Serialize, Deserialize)]
struct Progress {
    reader: u64,
    page: u32,
}

dq::queue!(remind: Meeting = "REMIND");
dq::queue!(follow_up: Meeting = "FOLLOW_UP");
dq::queue!(progress: Progress = "PROGRESS");

async fn plan(dq: &Dq, meeting: Meeting) -> dq::Result<()> {
    let ten_minutes_before = meeting.start - 10.minutes();
    dq.schedule::<remind>(meeting.clone()).at(ten_minutes_before).await?;
    dq.schedule::<follow_up>(meeting).after(2.days()).await?;
    Ok(())
}

async fn plan_all(dq: &Dq, meetings: Vec<Meeting>) -> dq::Result<usize> {
    let jobs = meetings.into_iter().map(|meeting| {
        let due = meeting.start - 10.minutes();
        dq.schedule::<remind>(meeting).at(due)
    });
    Ok(dq.schedule_many(jobs).await?.len())
}

async fn meeting_changed(dq: &Dq, meeting: &Meeting) -> dq::Result<()> {
    let key = format!("meeting-{}", meeting.id);
    if meeting.is_called_off {
        dq.cancel::<remind>(key).await?;
    } else {
        dq.reschedule::<remind>(key, meeting.start - 10.minutes()).await?;
    }
    Ok(())
}

async fn save_progress(dq: &Dq, reader: u64, page: u32) -> dq::Result<()> {
    dq.schedule::<progress>(Progress { reader, page })
        .after(2.hours())
        .key(format!("reader-{reader}"))
        .on_conflict(OnConflict::Replace)
        .await?;
    Ok(())
}

async fn schedule_once(dq: &Dq, id: dq::JobId, meeting: Meeting) -> dq::Result<Scheduled> {
    dq.schedule::<follow_up>(meeting).after(1.hours()).id(id).await
}

async fn report(dq: &Dq) -> dq::Result<()> {
    for stats in dq.stats().await? {
        println!("{}: {} scheduled, {} dead", stats.queue, stats.scheduled, stats.dead);
        if stats.dead > 0 {
            dq.queue(&stats.queue)?.replay_all().await?;
        }
    }
    let page = dq.queue_of::<remind>()?.browse(JobState::Scheduled, None, 20).await?;
    for view in page.jobs {
        let meeting: Meeting = view.payload()?;
        println!("{} is due at {}", meeting.id, view.job.due);
    }
    Ok(())
}

#[tokio::test]
async fn a_reminder_moves_with_its_meeting_and_is_cancelled_with_it() -> dq::Result<()> {
    let dq = Dq::connect("memory:").await?;
    let start = Timestamp::from(std::time::SystemTime::now()) + 1.days();
    let mut meeting = Meeting { id: 7, start, is_called_off: false };
    let due = start - 10.minutes();
    dq.schedule::<remind>(meeting.clone()).at(due).key("meeting-7").await?;

    meeting.start = start + 1.hours();
    meeting_changed(&dq, &meeting).await?;
    let view = dq.get::<remind>("meeting-7").await?.expect("it is scheduled");
    assert_eq!(view.job.due, due + 1.hours());

    meeting.is_called_off = true;
    meeting_changed(&dq, &meeting).await?;
    assert!(dq.get::<remind>("meeting-7").await?.is_none());

    plan(&dq, meeting.clone()).await?;
    assert_eq!(plan_all(&dq, vec![meeting.clone(), meeting]).await?, 2);
    save_progress(&dq, 1, 2).await?;
    save_progress(&dq, 1, 3).await?;
    assert_eq!(dq.queue_of::<progress>()?.stats().await?.scheduled, 1);
    report(&dq).await
}
