package io.github.dqjobs.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Runs the due jobs of a code by a method of any bean. It may take the payload, a {@code Job}, or both, and returns
 * nothing or an {@code Outcome}. An exception is a failed attempt, which is retried.
 */
@Documented
@Target(ElementType.METHOD)
@Retention(RetentionPolicy.RUNTIME)
public @interface DelayHandler {
    /** The code, which may be the name of an enum's constant. */
    String value();
}
