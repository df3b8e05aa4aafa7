package io.github.dqjobs.spring;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.github.dqjobs.Job;
import io.github.dqjobs.Outcome;
import io.github.dqjobs.Worker;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;
import org.springframework.aop.support.AopUtils;
import org.springframework.beans.factory.ListableBeanFactory;
import org.springframework.context.SmartLifecycle;
import org.springframework.core.MethodIntrospector;
import org.springframework.core.MethodIntrospector.MetadataLookup;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.util.ClassUtils;
import org.springframework.util.ReflectionUtils;

/** Finds the handlers when the application has started, and stops the worker before its beans are destroyed. */
class DelayHandlers implements SmartLifecycle {
    private final DelayQueueTemplate template;
    private final DelayQueueProperties.Worker settings;
    private final ListableBeanFactory beans;
    private final ObjectMapper payloads;
    private Worker worker;
    private int handlers;

    DelayHandlers(
            DelayQueueTemplate template,
            DelayQueueProperties.Worker settings,
            ListableBeanFactory beans,
            ObjectMapper payloads) {
        this.template = template;
        this.settings = settings;
        this.beans = beans;
        this.payloads = payloads;
    }

    @Override
    public void start() {
        handlers = 0;
        worker = new Worker(template, settings.concurrency(), settings.lease(), settings.shutdownTimeout());
        for (String name : beans.getBeanNamesForType(Object.class, false, false)) {
            Class<?> type = beans.getType(name, false);
            if (type != null) {
                MetadataLookup<DelayHandler> lookup =
                        method -> AnnotatedElementUtils.findMergedAnnotation(method, DelayHandler.class);
                MethodIntrospector.selectMethods(ClassUtils.getUserClass(type), lookup)
                        .forEach((method, handler) -> add(handler.value(), beans.getBean(name), method));
            }
        }
        if (handlers > 0) {
            worker.start();
        }
    }

    private void add(String code, Object bean, Method method) {
        long payloadCount = Arrays.stream(method.getParameterTypes())
                .filter(type -> type != Job.class)
                .count();
        boolean returns = method.getReturnType() == void.class || method.getReturnType() == Outcome.class;
        if (payloadCount > 1 || !returns) {
            throw new IllegalStateException(method + " takes a payload, a Job or both, and returns Outcome or nothing");
        }
        Method target = AopUtils.selectInvocableMethod(method, bean.getClass());
        ReflectionUtils.makeAccessible(target);
        worker.on(code, JsonNode.class, (payload, job) -> invoke(bean, target, payload, job));
        handlers++;
    }

    private Outcome invoke(Object bean, Method method, JsonNode payload, Job job) throws Exception {
        Object[] arguments = Arrays.stream(method.getGenericParameterTypes())
                .map(type ->
                        type == Job.class ? job : payloads.<Object>convertValue(payload, payloads.constructType(type)))
                .toArray();
        try {
            return (Outcome) method.invoke(bean, arguments);
        } catch (InvocationTargetException e) {
            ReflectionUtils.rethrowException(e.getTargetException());
            return null;
        }
    }

    @Override
    public void stop() {
        worker.close();
        worker = null;
    }

    @Override
    public boolean isRunning() {
        return worker != null;
    }
}
