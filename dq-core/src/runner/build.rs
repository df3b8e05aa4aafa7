//! Builds a runner: validates handlers, state and settings before the first job.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::builder::RunnerBuilder;
use super::flow;
use super::late;
use super::run::Runner;
use super::shared::{RunnerShared, ServedQueue};
use super::slots::{QueueSlots, Slots};
use crate::backend::Backend;
use crate::client::{ClientShared, Dq};
use crate::config::{QueueSettings, ScheduleSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Handler, Registry, forward_handler};
use crate::ingress::Ingress;
use crate::model::QueueName;
use crate::schedules::{self, Declarations};

/// Bytes of a name without its random digits.
const MAX_NAME: usize = 128;

impl RunnerBuilder {
    /// Validates everything and logs the handler table.
    ///
    /// # Errors
    /// - `Duplicate`: two handlers have the same code or two schedules the same name (the error
    ///   names both places);
    /// - `Unhandled`: there are no handlers, or none for a queue given to [`queue`](Self::queue),
    ///   [`only`](Self::only) or, without `only`, in the configuration;
    /// - `MissingState`: a handler requires a `State<T>` that you did not add;
    /// - `Config`: a setting is out of range, or a configured forward or ingress cannot be used;
    /// - `Unsupported`: a schedule is declared and the store cannot keep schedules, a handler has
    ///   an escalation and the store does not support steps, a queue has a limit and the store
    ///   keeps none, or an ingress is configured and the store cannot pin ids;
    /// - `InvalidInput`: a code is reserved or not a valid queue name, a declared schedule is
    ///   invalid, or the runner's name is.
    pub fn build(self) -> Result<Runner> {
        build(self, None).map_err(|error| error.operation("build the runner"))
    }

    /// Builds a runner without handlers whose state is missing; also returns their errors.
    ///
    /// After [`only`](Self::only), missing state is an error as in [`build`](Self::build).
    #[doc(hidden)]
    pub fn build_with_given_state(self) -> Result<(Runner, BTreeMap<QueueName, Error>)> {
        let mut missing = BTreeMap::new();
        let runner = build(self, Some(&mut missing));
        Ok((runner.map_err(|error| error.operation("build the runner"))?, missing))
    }

    /// Calls [`build`](Self::build), then [`Runner::run_until`].
    pub async fn run_until<T>(self, shutdown: impl Future<Output = T>) -> Result<()> {
        self.build()?.run_until(shutdown).await
    }
}

/// Builds the runner.
///
/// Leaves out handlers whose state is missing, and adds their errors to `missing_state`. Without
/// it, or if the builder names its queues, missing state is an error.
fn build(
    builder: RunnerBuilder,
    missing_state: Option<&mut BTreeMap<QueueName, Error>>,
) -> Result<Runner> {
    builder.runner.validate()?;
    let shared = builder.dq.shared();
    let mut registry = if builder.use_linked { Registry::linked()? } else { Registry::default() };
    for handler in builder.handlers {
        registry.insert(handler?)?;
    }
    let only = builder.only.map(|only| only.into_iter().collect::<Result<Vec<_>>>()).transpose()?;
    add_forwards(&mut registry, shared, only.as_deref())?;
    let ingress = if builder.takes_messages {
        Ingress::of(&builder.dq, only.as_deref())?
    } else {
        Ingress::none(&builder.dq)
    };
    let builder_settings = builder_settings(builder.settings, &registry)?;
    match &only {
        Some(only) => registry.retain(only)?,
        None => expect_configured_queues(&registry, shared)?,
    }
    if registry.is_empty() {
        return Err(no_handlers());
    }
    match missing_state {
        Some(missing) if only.is_none() => {
            *missing = registry.remove_without_state(&builder.state);
        }
        _ => registry.expect_state(&builder.state)?,
    }
    expect_next_steps(&registry, shared)?;

    let serve = |handler| served_queue(handler, &builder_settings, shared);
    let mut queues: Vec<ServedQueue> = registry.iter().map(serve).collect::<Result<_>>()?;
    late::refuse_rings(&queues)?;
    expect_reserves_to_fit(&queues, builder.runner.concurrency)?;
    for ServedQueue { queue, policy, .. } in &queues {
        flow::expect_supported(queue, &policy.flow, &shared.stores.main)?;
    }
    let declarations = if builder.stores_schedules {
        declarations(&builder.dq, &registry)?
    } else {
        Declarations::new(&builder.dq)
    };
    if schedules::is_supported(shared.stores.main.capabilities()) {
        let handler = Arc::new(schedules::handler(&builder.dq));
        queues.push(ServedQueue::new(schedules::queue(), handler, schedules::policy()));
    }
    let name = builder.name.unwrap_or_else(|| std::process::id().to_string());
    let name = shared.runner_name(&expect_name(name)?);
    let stores: Vec<_> = shared.stores.iter().cloned().collect();
    let (backend, concurrency) = (shared.stores.main.name(), builder.runner.concurrency);
    tracing::info!(runner = %name, backend, concurrency, "a runner is ready");
    tracing::info!("handlers:{}", registry.table());
    let slots = Slots::new(
        concurrency,
        queues.iter().map(queue_slots).collect(),
        stores.len(),
        Arc::clone(&shared.environment.clock),
        builder.observers.clone(),
    );
    let index_of = queues.iter().enumerate().map(|(index, served)| (served.queue.clone(), index));
    let runner = RunnerShared {
        name: name.into(),
        is_restricted: only.is_some(),
        slots: Arc::new(slots),
        index_of: index_of.collect(),
        built_at: shared.environment.clock.now(),
        queues,
        middleware: builder.middleware,
        state: Arc::new(builder.state),
        client: Arc::clone(shared),
        observers: builder.observers,
        settings: builder.runner,
        stop: CancellationToken::new(),
        abort: CancellationToken::new(),
    };
    Ok(Runner { shared: Arc::new(runner), stores, declarations: Arc::new(declarations), ingress })
}

fn expect_name(name: String) -> Result<String> {
    if name.is_empty() || name.len() > MAX_NAME || name.contains(char::is_control) {
        let shown: String = name.chars().take(40).collect();
        return Err(Error::invalid(format!("{shown:?} is not a runner's name"))
            .remedy(format!("a name has 1 to {MAX_NAME} bytes without control characters")));
    }
    Ok(name)
}

fn add_forwards(
    registry: &mut Registry,
    shared: &ClientShared,
    only: Option<&[QueueName]>,
) -> Result<()> {
    for (queue, settings) in &shared.queues {
        let is_served = only.is_none_or(|only| only.contains(queue));
        if let Some(forward) = settings.forward.as_ref().filter(|_| is_served) {
            registry.insert(forward_handler(queue, forward)?)?;
        }
    }
    Ok(())
}

fn builder_settings(
    settings: Vec<(Result<QueueName>, QueueSettings)>,
    registry: &Registry,
) -> Result<Vec<(QueueName, QueueSettings)>> {
    let validate = |(queue, settings): (Result<QueueName>, QueueSettings)| {
        let queue = queue?;
        registry.expect(&queue)?;
        let only_configurable = [
            ("history", settings.history.is_some()),
            ("lateness", settings.lateness.is_some()),
            ("spread", settings.spread.is_some()),
        ];
        if let Some((setting, _)) = only_configurable.into_iter().find(|(_, is_set)| *is_set) {
            let message = format!("a runner cannot set the {setting} of queue {queue}");
            return Err(Error::new(ErrorKind::Config, message)
                .remedy("set it in `[defaults]` or `[queues.…]` of the configuration"));
        }
        Ok((queue, settings))
    };
    settings.into_iter().map(validate).collect()
}

fn expect_configured_queues(registry: &Registry, shared: &ClientShared) -> Result<()> {
    for queue in shared.queues.keys() {
        registry.expect(queue).map_err(|error| {
            let remedy = error.remedy_text().unwrap_or_default().to_owned();
            error.remedy(format!(
                "it is in the configuration; {remedy}; if another service handles it, list the \
                 queues of this one with `.only([…])`"
            ))
        })?;
    }
    Ok(())
}

fn no_handlers() -> Error {
    Error::new(ErrorKind::Unhandled, "the runner has no handlers").remedy(
        "annotate a function with #[delay_handler(\"CODE\")]; if it is in another crate, name that \
         crate in code: `use my_handlers as _;`",
    )
}

fn expect_next_steps(registry: &Registry, shared: &ClientShared) -> Result<()> {
    let store = &shared.stores.main;
    let escalating = registry.iter().find(|handler| !handler.escalation.steps.is_empty());
    match escalating {
        Some(handler) if !store.capabilities().again => {
            let feature =
                format!("next steps of jobs, which the escalation of {} needs", handler.queue);
            Err(Error::unsupported(store.name(), &feature))
        }
        _ => Ok(()),
    }
}

/// Also refuses reserves that leave no slot to a queue without one.
fn expect_reserves_to_fit(queues: &[ServedQueue], concurrency: usize) -> Result<()> {
    let (reserving, others): (Vec<_>, Vec<_>) =
        queues.iter().partition(|served| served.policy.reserve > 0);
    let sum = reserving.iter().fold(0, |sum: usize, it| sum.saturating_add(it.policy.reserve));
    let problem = match others.first() {
        _ if sum > concurrency => "are more than it has".to_owned(),
        Some(other) if sum == concurrency => format!("leave none to queue {}", other.queue),
        _ => return Ok(()),
    };
    let reserves: Vec<_> =
        reserving.iter().map(|it| format!("{} {}", it.queue, it.policy.reserve)).collect();
    let message = format!(
        "the runner's concurrency is {concurrency}, and {sum} reserved slots {problem} (reserve of \
         each queue: {})",
        reserves.join(", ")
    );
    Err(Error::new(ErrorKind::Config, message)
        .remedy("raise the runner's concurrency, or reserve fewer slots"))
}

fn queue_slots(served: &ServedQueue) -> QueueSlots {
    let policy = &served.policy;
    match served.queue.is_reserved() {
        true => QueueSlots::internal(policy.concurrency),
        false => QueueSlots::application(policy.concurrency, policy.priority, policy.reserve),
    }
}

/// Combines a queue's settings: the builder's override the configuration's, and those the
/// handler's.
fn served_queue(
    handler: &Arc<Handler>,
    builder_settings: &[(QueueName, QueueSettings)],
    shared: &ClientShared,
) -> Result<ServedQueue> {
    let queue = handler.queue.clone();
    // Later calls of `queue` override earlier ones.
    let of_builder = builder_settings
        .iter()
        .rev()
        .filter(|(name, _)| *name == queue)
        .fold(QueueSettings::default(), |merged, (_, below)| merged.over(below.clone()));
    let policy = of_builder
        .over(shared.queues.get(&queue).cloned().unwrap_or_default())
        .over(shared.defaults.clone())
        .over(handler.settings.clone())
        .policy(&queue)?;
    Ok(ServedQueue::new(queue, Arc::clone(handler), policy))
}

fn declarations(dq: &Dq, registry: &Registry) -> Result<Declarations> {
    let mut declarations = Declarations::new(dq);
    let mut declare = |name: &str, settings: &ScheduleSettings, aliases, place: &str| {
        let spec = settings.spec(name).map_err(|error| {
            error.remedy(format!("correct the schedule, which is declared by {place}"))
        });
        declarations.insert(name, spec?, aliases, place)
    };
    for handler in registry.iter() {
        if let Some(mut settings) = handler.schedule.clone() {
            settings.queue = Some(handler.queue.clone());
            let place = format!("the handler at {}", handler.location);
            declare(handler.queue.as_str(), &settings, handler.aliases, &place)?;
        }
    }
    for (name, settings) in &dq.shared().schedules {
        declare(name, settings, &[], &format!("[schedules.{name}] of the configuration"))?;
    }
    Ok(declarations)
}
