%% A stand-in for the plugin `rabbitmq_delayed_message_exchange`, which Debian does not package: an
%% exchange that reports messages with a delay as unroutable, and routes them to its bindings later.
%% Delayed messages do not survive a restart.

-module(delayed).
-behaviour(rabbit_exchange_type).

-export([register/0, released/0]).
-export([description/0, info/1, info/2, serialise_events/0, validate/1, validate_binding/2, create/2,
         delete/2, delete/3, policy_changed/2, add_binding/3, remove_bindings/3,
         assert_args_equivalence/2, route/2, route/3]).

-define(RELEASED, {?MODULE, released}).

register() ->
    persistent_term:put(?RELEASED, counters:new(1, [])),
    rabbit_registry:register(exchange, <<"x-delayed-message">>, ?MODULE).

%% Number of messages whose delay has ended.
released() -> counters:get(persistent_term:get(?RELEASED), 1).

%% For brokers before 3.13.
route(Exchange, Delivery) ->
    Content = rabbit_binary_parser:ensure_content_decoded(element(4, element(5, Delivery))),
    Headers = element(4, element(3, Content)),
    Deliver = fun() ->
        Queues = rabbit_amqqueue:lookup(rabbit_exchange:route(Exchange, Delivery)),
        rabbit_amqqueue:deliver(Queues, Delivery)
    end,
    later(Exchange, Headers =/= undefined andalso rabbit_misc:table_lookup(Headers, <<"x-delay">>), Deliver).

%% For brokers from 3.13 on.
route(Exchange, Message, _Options) ->
    Deliver = fun() -> rabbit_queue_type:publish_at_most_once(Exchange, Message) end,
    later(Exchange, mc:x_header(<<"x-delay">>, Message), Deliver).

later(Exchange, Delay, Deliver) ->
    case {get(?MODULE), Delay} of
        {undefined, {long, Milliseconds}} ->
            spawn(fun() ->
                timer:sleep(Milliseconds),
                %% Delivery calls route again, which must not delay a second time.
                put(?MODULE, waited),
                Deliver(),
                counters:add(persistent_term:get(?RELEASED), 1, 1)
            end),
            [];
        _ ->
            rabbit_router:match_routing_key(element(2, Exchange), ['_'])
    end.

description() -> [{description, <<"a stand-in">>}].
info(_) -> [].
info(_, _) -> [].
serialise_events() -> false.
validate(_) -> ok.
validate_binding(_, _) -> ok.
create(_, _) -> ok.
delete(_, _) -> ok.
delete(_, _, _) -> ok.
policy_changed(_, _) -> ok.
add_binding(_, _, _) -> ok.
remove_bindings(_, _, _) -> ok.
assert_args_equivalence(Exchange, Arguments) -> rabbit_exchange:assert_args_equivalence(Exchange, Arguments).
