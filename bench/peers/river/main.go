// Stores and runs jobs with River; see ../README.md for the arguments and the output.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	concurrency = 16
	// Jobs per call.
	bulk = 1000
)

type job struct {
	ID  int   `json:"id"`
	Due int64 `json:"due"`
}

func (job) Kind() string { return "job" }

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
	context := context.Background()
	pool, err := pgxpool.New(context, os.Args[2])
	check(err)
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	check(err)
	_, err = migrator.Migrate(context, rivermigrate.DirectionUp, nil)
	check(err)
	if os.Args[1] == "store" {
		store(context, driver, number(3), os.Args[4], int64(number(5)), number(6))
	} else {
		work(context, driver, time.Duration(number(3))*time.Millisecond)
	}
}

func newJob(id int, first int64, rate int) river.InsertManyParams {
	if first == 0 {
		return river.InsertManyParams{Args: job{ID: id, Due: time.Now().UnixMilli()}}
	}
	due := first
	if rate > 0 {
		due += int64(id) * 1000 / int64(rate)
	}
	opts := &river.InsertOpts{ScheduledAt: time.UnixMilli(due)}
	return river.InsertManyParams{Args: job{ID: id, Due: due}, InsertOpts: opts}
}

func store(context context.Context, driver *riverpgxv5.Driver, count int, how string, first int64, rate int) {
	client, err := river.NewClient[pgx.Tx](driver, &river.Config{})
	check(err)
	started := time.Now()
	if how == "bulk" {
		for begin := 0; begin < count; begin += bulk {
			var jobs []river.InsertManyParams
			for id := begin; id < min(begin+bulk, count); id++ {
				jobs = append(jobs, newJob(id, first, rate))
			}
			_, err := client.InsertManyFast(context, jobs)
			check(err)
		}
	} else {
		for id := range count {
			job := newJob(id, first, rate)
			_, err := client.Insert(context, job.Args, job.InsertOpts)
			check(err)
		}
	}
	fmt.Println(time.Since(started).Seconds())
}

type worker struct {
	river.WorkerDefaults[job]
	sleep  time.Duration
	lock   sync.Mutex
	output *bufio.Writer
}

func (worker *worker) Work(_ context.Context, job *river.Job[job]) error {
	started := time.Now().UnixMicro()
	time.Sleep(worker.sleep)
	worker.lock.Lock()
	defer worker.lock.Unlock()
	fmt.Fprintln(worker.output, job.Args.ID, job.Args.Due, started)
	return worker.output.Flush()
}

func work(context context.Context, driver *riverpgxv5.Driver, sleep time.Duration) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{sleep: sleep, output: bufio.NewWriter(os.Stdout)})
	client, err := river.NewClient[pgx.Tx](driver, &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: concurrency}},
		Workers: workers,
		// At most once in this time it fetches as many jobs as it has free slots: the shortest that it
		// allows, by default 100 ms, and how often it looks without a notification, by default a second.
		FetchCooldown:     time.Millisecond,
		FetchPollInterval: 100 * time.Millisecond,
	})
	check(err)
	check(client.Start(context))
	select {}
}
