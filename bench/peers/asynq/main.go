// Stores and runs jobs with asynq; see ../README.md for the arguments and the output.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

const (
	concurrency = 16
	// Each caller waits for its reply; asynq has no call for several tasks.
	bulkCallers = 64
)

type job struct {
	ID  int   `json:"id"`
	Due int64 `json:"due"`
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func number(position int) int {
	value, err := strconv.Atoi(os.Args[position])
	check(err)
	return value
}

func main() {
	redis := asynq.RedisClientOpt{Addr: os.Args[2], PoolSize: bulkCallers}
	if os.Args[1] == "store" {
		store(redis, number(3), os.Args[4], int64(number(5)), number(6))
	} else {
		work(redis, time.Duration(number(3))*time.Millisecond)
	}
}

func store(redis asynq.RedisClientOpt, count int, how string, first int64, rate int) {
	client := asynq.NewClient(redis)
	defer client.Close()
	callers := 1
	if how == "bulk" {
		callers = bulkCallers
	}
	started := time.Now()
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			for id := caller; id < count; id += callers {
				due := first
				if rate > 0 {
					due += int64(id) * 1000 / int64(rate)
				}
				options := []asynq.Option{asynq.MaxRetry(25)}
				if due > 0 {
					options = append(options, asynq.ProcessAt(time.UnixMilli(due)))
				} else {
					due = time.Now().UnixMilli()
				}
				payload, err := json.Marshal(job{ID: id, Due: due})
				check(err)
				_, err = client.Enqueue(asynq.NewTask("job", payload), options...)
				check(err)
			}
		})
	}
	group.Wait()
	fmt.Println(time.Since(started).Seconds())
}

func work(redis asynq.RedisClientOpt, sleep time.Duration) {
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency: concurrency,
		// How often it looks for due tasks, and for tasks while there were none: by default every five
		// seconds and every second. No shortest interval is documented. Due times are whole seconds.
		DelayedTaskCheckInterval: 100 * time.Millisecond,
		TaskCheckInterval:        100 * time.Millisecond,
		LogLevel:                 asynq.FatalLevel,
	})
	var lock sync.Mutex
	output := bufio.NewWriter(os.Stdout)
	handle := func(_ context.Context, task *asynq.Task) error {
		started := time.Now().UnixMicro()
		var job job
		if err := json.Unmarshal(task.Payload(), &job); err != nil {
			return err
		}
		time.Sleep(sleep)
		lock.Lock()
		defer lock.Unlock()
		fmt.Fprintln(output, job.ID, job.Due, started)
		return output.Flush()
	}
	check(server.Run(asynq.HandlerFunc(handle)))
}
