package io.github.dqjobs.spring;

import com.fasterxml.jackson.databind.ObjectMapper;
import org.springframework.beans.factory.ListableBeanFactory;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.jackson.JacksonAutoConfiguration;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;

/** A {@link DelayQueueTemplate}, and a worker for the methods with {@link DelayHandler}. */
@AutoConfiguration(after = JacksonAutoConfiguration.class)
@EnableConfigurationProperties(DelayQueueProperties.class)
public class DelayQueueAutoConfiguration {
    @Bean
    @ConditionalOnMissingBean
    DelayQueueTemplate delayQueueTemplate(DelayQueueProperties settings, ObjectMapper payloads) {
        return new DelayQueueTemplate(settings.url(), settings.token(), payloads);
    }

    @Bean
    @ConditionalOnProperty(name = "dq.worker.enabled", matchIfMissing = true)
    DelayHandlers delayHandlers(
            DelayQueueTemplate template,
            DelayQueueProperties settings,
            ListableBeanFactory beans,
            ObjectMapper payloads) {
        return new DelayHandlers(template, settings.worker(), beans, payloads);
    }
}
