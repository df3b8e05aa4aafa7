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
dq::queue!(update_index: u64 = "UPDATE_INDEX");

async fn plan(dq: &Dq, meeting: Meeting) -> dq::Result<Timestamp> {
    let ten_minutes_before = meeting.start - 10.minutes();
    let key = format!("meeting-{}", meeting.id);
    let reminder = dq.schedule::<remind>(meeting.clone()).at(ten_minutes_before).key(key).await?;
    let _ = dq.schedule::<follow_up>(meeting).after(2.days()).await?;
    Ok(reminder.due())
}

async fn plan_all(dq: &Dq, meetings: Vec<Meeting>) -> dq::Result<usize> {
    let jobs = meetings.into_iter().map(|meeting| {
        let (due, key) = (meeting.start - 10.minutes(), format!("meeting-{}", meeting.id));
        dq.schedule::<remind>(meeting).at(due).key(key)
    });
    Ok(dq.schedule_many(jobs).await?.len())
}

async fn meeting_changed(dq: &Dq, meeting: &Meeting) -> dq::Result<()> {
    let key = format!("meeting-{}", meeting.id);
    if meeting.is_called_off {
        if dq.cancel::<remind>(key).await? == Cancelled::AlreadyRunning {
            println!("the reminder of meeting {} is on its way already", meeting.id);
        }
    } else {
        let _ = dq.reschedule::<remind>(key, meeting.start - 10.minutes()).await?;
    }
    Ok(())
}

async fn save_progress(dq: &Dq, reader: u64, page: u32) -> dq::Result<()> {
    let _ = dq
        .schedule::<progress>(Progress { reader, page })
        .after(2.hours())
        .key(format!("reader-{reader}"))
        .on_conflict(OnConflict::Replace)
        .await?;
    Ok(())
}

async fn remind_for(dq: &Dq, tenant: &str, meeting: Meeting) -> dq::Result<Scheduled> {
    dq.schedule::<remind>(meeting).after(1.hours()).header("tenant", tenant).max_attempts(1).await
}

async fn schedule_once(dq: &Dq, id: JobId, meeting: Meeting) -> dq::Result<Scheduled> {
    dq.schedule::<follow_up>(meeting).after(1.hours()).id(id).await
}

async fn document_changed(dq: &Dq, document: u64) -> dq::Result<()> {
    let _ = dq
        .schedule::<update_index>(document)
        .after(5.seconds())
        .key(format!("document-{document}"))
        .on_running(OnRunning::Detach)
        .await?;
    Ok(())
}

async fn schedule_once_and_remember(dq: &Dq, id: JobId, meeting: Meeting) -> dq::Result<()> {
    let answer =
        dq.schedule::<follow_up>(meeting).after(1.hours()).id(id).remember(7.days()).await?;
    if let Scheduled::Ended(receipt) = answer {
        println!("job {} has ended already", receipt.id);
    }
    Ok(())
}

async fn what_happened(dq: &Dq, id: JobId) -> dq::Result<()> {
    match dq.get::<follow_up>(id).await? {
        Some(JobView { ended: Some(ended), .. }) => {
            println!("{:?} at {}: {}", ended.ending, ended.at, ended.reason.unwrap_or_default());
        }
        Some(JobView { state, last_error: Some(error), .. }) => println!("{state}, after: {error}"),
        Some(JobView { state, .. }) => println!("{state}"),
        None => println!("unknown, or forgotten"),
    }
    Ok(())
}

#[tokio::test]
async fn the_functions_of_the_page_do_what_it_says() -> dq::Result<()> {
    let history = QueueSettings::new().history(dq::HistoryLimit::default());
    let dq = Dq::builder().url("memory:").defaults(history).connect().await?;
    let start = Timestamp::from(std::time::SystemTime::now()) + 1.days();
    let mut meeting = Meeting { id: 7, start, is_called_off: false };

    let due = plan(&dq, meeting.clone()).await?;
    assert_eq!(plan_all(&dq, vec![meeting.clone(), meeting.clone()]).await?, 2);
    meeting.start = start + 1.hours();
    meeting_changed(&dq, &meeting).await?;
    let moved = dq.get::<remind>("meeting-7").await?.expect("it is scheduled");
    assert_eq!(moved.job.due, due + 1.hours());
    meeting.is_called_off = true;
    meeting_changed(&dq, &meeting).await?;
    assert!(dq.get::<remind>("meeting-7").await?.is_none(), "its key is free");

    for page in [2, 3] {
        save_progress(&dq, 1, page).await?;
        document_changed(&dq, 1).await?;
    }
    assert_eq!(dq.queue_of::<progress>()?.stats().await?.scheduled, 1);
    assert_eq!(dq.queue_of::<update_index>()?.stats().await?.scheduled, 1);
    assert!(remind_for(&dq, "acme", meeting.clone()).await?.is_stored());

    let id = dq.new_id();
    schedule_once_and_remember(&dq, id, meeting.clone()).await?;
    assert_eq!(dq.cancel::<follow_up>(id).await?, Cancelled::Cancelled);
    what_happened(&dq, id).await?;
    let again = schedule_once(&dq, id, meeting).await?;
    assert!(matches!(again, Scheduled::Ended(_)), "{again:?}");
    Ok(())
}
